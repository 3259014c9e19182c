//go:build unix && !linux && !darwin

package unixsocket

import "errors"

// userOf fails: a peer whose user is unknown is rejected.
func userOf(int) (int, error) {
	return -1, errors.New("this system does not report the user of a Unix socket's peer")
}
