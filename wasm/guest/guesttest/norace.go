//go:build !race

package guesttest

const race = false
