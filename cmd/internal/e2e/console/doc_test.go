// Package console tests the web console in a real browser: what it shows of a running fleet, live
// updates, reconnection, the what-if's errors, hostile names, 1,000 replicas, the keyboard, and
// accessibility; and the accessibility of the documentation's site. The browser is chromium, from PATH or $CHROMIUM, driven by the DevTools protocol.
//
// Screenshots are written to out/console with CASCADE_TEST_ALL=1; with CASCADE_CONSOLE=URL they
// show the fleet whose control plane answers there.
package console
