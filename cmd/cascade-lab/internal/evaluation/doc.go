// Package evaluation repeats the paper's evaluation, and adds one of its own, in package sim.
//
// New returns the Evaluation of some inputs. Runs lists the simulations that it needs; the caller executes each
// with Execute, in any order and as many at a time as it likes, stores the Outcomes if it wants to go on later,
// and passes all of them to Page. Each row of the page is a pure function of outcomes: its figures, whether the
// paper's claim is seen, and the sentences about where Cascade loses.
//
// Invariants: equal inputs give equal runs, equal runs equal outcomes, and equal outcomes the same page, byte for
// byte; every figure and every claim of the paper's evaluation has a row, even if it says why there is no figure.
package evaluation
