// Package monitoring provides what the tests of alerts, dashboard and runbook share: promtool, the rules and the
// dashboard of deploy, and what their expressions name, by Prometheus's own parser.
//
// The package's own tests check the files by themselves: that promtool accepts them, that each alert is tested and
// has a section of the runbook. Tests of running fleets (package processes) check that what the expressions name
// is exposed.
package monitoring
