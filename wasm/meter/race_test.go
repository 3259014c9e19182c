//go:build race

package meter

// raceEnabled makes tests do less: the detector slows compilation tenfold.
const raceEnabled = true
