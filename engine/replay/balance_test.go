package replay

import (
	"math"
	"math/rand/v2"
	"testing"
)

// sampleAll samples work that grows by rates each second.
func sampleAll(m *BalanceMeter, seconds int, rates []float64, stages []int) {
	work := make([]float64, len(rates))
	for s := range seconds + 1 {
		m.Sample(float64(s), work, stages)
		for i, r := range rates {
			work[i] += r
		}
	}
}

// TestCV checks loads whose coefficient of variation is known.
func TestCV(t *testing.T) {
	for name, c := range map[string]struct {
		rates  []float64
		stages []int
		want   float64
		none   bool
	}{
		"even":                      {[]float64{5, 5, 5}, []int{0, 0, 0}, 0, false},
		"one of two works":          {[]float64{8, 0}, []int{0, 0}, 1, false},
		"uneven between stages":     {[]float64{9, 9, 1, 1}, []int{0, 0, 1, 1}, 0, false},
		"stages in any order":       {[]float64{9, 1, 9, 1}, []int{1, 0, 1, 0}, 0, false},
		"one of the stages":         {[]float64{6, 2, 4, 4}, []int{0, 0, 1, 1}, 0.25, false},
		"by load":                   {[]float64{6, 2, 100, 100}, []int{0, 0, 1, 1}, 4.0 / 208, false},
		"stages of one replica":     {[]float64{6, 2}, []int{0, 1}, 0, true},
		"a replica without a stage": {[]float64{4, 4, 400}, []int{0, 0, -1}, 0, false},
		"several without a stage":   {[]float64{4, 8}, []int{-1, -1}, 0, true},
		"no work":                   {[]float64{0, 0}, []int{0, 0}, 0, true},
	} {
		var m BalanceMeter
		sampleAll(&m, 90, c.rates, c.stages)
		if got, ok := m.CV(); ok == c.none || math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: %v, %v; want %v", name, got, ok, c.want)
		}
	}
	var m BalanceMeter
	if _, ok := m.CV(); ok {
		t.Error("without samples")
	}
}

// TestOldWorkFades checks that work of long ago counts no more, and that a replica may begin again.
func TestOldWorkFades(t *testing.T) {
	var m BalanceMeter
	m.Sample(0, []float64{0, 0}, []int{0, 0})
	m.Sample(1, []float64{100, 0}, []int{0, 0})
	if got, _ := m.CV(); got != 1 {
		t.Errorf("first: %v", got)
	}
	m.Sample(1000, []float64{100, 100}, []int{0, 0}) // only the second one has worked lately
	if want := 100 * math.Exp(-999/BalanceWindow); m.load[0] != want || m.load[1] != 100 {
		t.Errorf("loads %v", m.load)
	}
	m.Sample(2000, []float64{40, 140}, []int{0, 0}) // the first one has begun again and done 40
	if math.Abs(m.load[0]-40) > 1e-6 || math.Abs(m.load[1]-40) > 1e-6 {
		t.Errorf("loads after a restart: %v", m.load)
	}
}

// TestAgainstDefinition checks one stage against the definition, computed plainly.
func TestAgainstDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var m BalanceMeter
	work := make([]float64, 5)
	type event struct {
		at, work float64
		replica  int
	}
	var events []event
	deviation, mean, at := 0.0, 0.0, 0.0
	m.Sample(at, work, make([]int, 5))
	for range 200 {
		at += rng.Float64() * 3
		for i := range work {
			done := rng.Float64() * 100
			work[i] += done
			events = append(events, event{at, done, i})
		}
		m.Sample(at, work, make([]int, 5))
		var load [5]float64
		for _, e := range events {
			load[e.replica] += e.work * math.Exp(-(at-e.at)/BalanceWindow)
		}
		average, variance := 0.0, 0.0
		for _, l := range load {
			average += l / 5
		}
		for _, l := range load {
			variance += (l - average) * (l - average) / 5
		}
		deviation, mean = deviation+math.Sqrt(variance), mean+average
	}
	if got, _ := m.CV(); math.Abs(got-deviation/mean) > 1e-9 {
		t.Errorf("%v, want %v", got, deviation/mean)
	}
}
