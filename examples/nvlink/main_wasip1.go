package main

// main is never called: the module is a reactor.
func main() {}
