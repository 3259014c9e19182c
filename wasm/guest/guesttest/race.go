//go:build race

package guesttest

const race = true
