package serve_test

// crowdMain is what this program does as the process of clients.
func crowdMain() bool { return false }
