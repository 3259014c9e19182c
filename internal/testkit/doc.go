// Package testkit has what the tests of all folders share: scenario texts (TestScenarios,
// SetFields), golden files (CompareGolden), errors (NoError, WantError), waits (WaitFor,
// WaitForEvent), components that run for a test (Run), addresses (Addresses), logs that are read while they are
// written (Log), outages (Outage), the sizes of random tests (Size), and why a test is
// skipped (Skip). It is for tests only, and knows nothing of what is tested.
//
// It reads two environment variables: with CASCADE_TEST_ALL the slow tests run, too, and
// with CI a test fails for want of what continuous integration has.
package testkit
