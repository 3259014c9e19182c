// Package testkit has what the tests of all folders share: scenario texts (TestScenarios,
// SetFields), golden files (CompareGolden), errors (NoError, WantError), waits (WaitFor,
// WaitForEvent), components that run for a test (Run), logs that are read while they are
// written (Log), outages (Outage), and the sizes of random tests (Size). It is for tests only, and knows nothing of what
// is tested. It lies under policies because every folder may import policies.
package testkit
