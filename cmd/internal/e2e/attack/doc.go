// Package attack attacks a running fleet: real daemons, raw bytes on every port.
//
// The cases are text, in testdata: an attack, the ports that get it, and what came of it at each.
// Whatever must not get through has the word "evil" in it, so that an outcome can say where the
// engine saw it. README.md in this folder is the table of all cases; the tests write it with
// -rewrite.
//
// No package imports it. Attacks that need no whole fleet are tests of their package, named
// TestAttack…; "make attack" runs them and this package.
package attack
