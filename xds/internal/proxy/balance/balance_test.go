package balance

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/xds/client"
)

var start = time.Unix(1000, 0)

// priorities returns an assignment with endpoints named p<i>-<j> of the given weights
// for each priority; a negative weight is an unhealthy endpoint.
func priorities(of ...[]int) *client.Assignment {
	a := &client.Assignment{OverprovisioningFactor: 140}
	for p, weights := range of {
		var eps []client.Endpoint
		for j, w := range weights {
			eps = append(eps, client.Endpoint{Address: fmt.Sprintf("p%d-%d", p, j), Weight: uint32(max(w, -w)), Healthy: w > 0, LocalityWeight: 1})
		}
		a.Priorities = append(a.Priorities, eps)
	}
	return a
}

func ones(healthy, unhealthy int) []int {
	return append(slices.Repeat([]int{1}, healthy), slices.Repeat([]int{-1}, unhealthy)...)
}

func with(c *client.Cluster, a *client.Assignment) *Balancer {
	b := New(1)
	b.Update(c, a)
	return b
}

func count(b *Balancer, n int) map[string]int {
	got := make(map[string]int)
	for range n {
		if h := b.Pick(start, new(Attempts), nil); h != nil {
			got[h.Address]++
		} else {
			got["none"]++
		}
	}
	return got
}

// TestWeights checks that in any run of picks every host has its share, within an error
// of little more than one pick because of the phases.
func TestWeights(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for range 50 {
		weights := make([]int, 1+r.IntN(12))
		sum := 0
		for i := range weights {
			weights[i] = 1 + r.IntN(100)
			sum += weights[i]
		}
		n := 200 + r.IntN(2000)
		got := count(with(&client.Cluster{}, priorities(weights)), n)
		for i, w := range weights {
			want := float64(n*w) / float64(sum)
			// EDF keeps a host within one turn; the phases of the others shift the
			// clock by at most as many turns as there are hosts, divided among them.
			if d := math.Abs(float64(got[fmt.Sprintf("p0-%d", i)]) - want); d > 2.5 {
				t.Errorf("weights %v, %d picks: host %d got %d, want %.1f", weights, n, i, got[fmt.Sprintf("p0-%d", i)], want)
			}
		}
	}
}

// TestUpdateKeepsTurns checks that weights that change a little all the time do not
// send every first pick to the same host.
func TestUpdateKeepsTurns(t *testing.T) {
	b := New(3)
	got := make(map[string]int)
	for i := range 4000 {
		b.Update(&client.Cluster{}, priorities([]int{100 + i%3, 100, 100, 100}))
		got[b.Pick(start, new(Attempts), nil).Address]++
	}
	for a, n := range got {
		if n < 950 || n > 1050 {
			t.Errorf("%s got %d of 4000", a, n)
		}
	}
}

// TestLoad contains the examples of Envoy's documentation of priority levels.
func TestLoad(t *testing.T) {
	for _, c := range []struct {
		tiers [][]int // healthy, unhealthy
		want  []int
	}{
		{[][]int{{4, 0}, {4, 0}}, []int{100, 0}},
		{[][]int{{72, 28}, {100, 0}}, []int{100, 0}},
		{[][]int{{71, 29}, {100, 0}}, []int{99, 1}},
		{[][]int{{50, 50}, {100, 0}}, []int{70, 30}},
		{[][]int{{25, 75}, {100, 0}}, []int{35, 65}},
		{[][]int{{25, 75}, {25, 75}}, []int{50, 50}},
		{[][]int{{0, 4}, {4, 0}}, []int{0, 100}},
		{[][]int{{5, 95}, {0, 4}, {5, 95}}, []int{50, 0, 50}},
		{[][]int{{0, 1}, {0, 1}, {1, 0}}, []int{0, 0, 100}},
		{[][]int{{0, 0}, {1, 0}}, []int{0, 100}},
	} {
		var of [][]int
		for _, t := range c.tiers {
			of = append(of, ones(t[0], t[1]))
		}
		b := with(&client.Cluster{PanicThreshold: 1}, priorities(of...))
		if !slices.Equal(b.loads, c.want) {
			t.Errorf("%v: load %v, want %v", c.tiers, b.loads, c.want)
		}
	}
}

func TestPanic(t *testing.T) {
	// No host is healthy: with a threshold all serve, without one none does.
	if got := count(with(&client.Cluster{PanicThreshold: 1}, priorities(ones(0, 2), ones(0, 2))), 400); len(got) != 4 || got["none"] > 0 {
		t.Errorf("in panic all four should serve: %v", got)
	}
	if got := count(with(&client.Cluster{PanicThreshold: 0}, priorities(ones(0, 2), ones(0, 2))), 10); got["none"] != 10 {
		t.Errorf("without panic no host should serve: %v", got)
	}
	// Below the threshold, with no other priority to take over, all hosts of the
	// priority serve.
	if got := count(with(&client.Cluster{PanicThreshold: 50}, priorities(ones(1, 3))), 400); len(got) != 4 {
		t.Errorf("25 %% healthy is panic: %v", got)
	}
	// The next priority is fully healthy, so there is no panic.
	if got := count(with(&client.Cluster{PanicThreshold: 50}, priorities(ones(0, 3), ones(2, 0))), 100); len(got) != 2 || got["p1-0"] != 50 {
		t.Errorf("the next priority should serve: %v", got)
	}
	if got := count(New(1), 3); got["none"] != 3 {
		t.Errorf("no endpoints: %v", got)
	}
}

func TestLocalityWeights(t *testing.T) {
	a := &client.Assignment{OverprovisioningFactor: 140, Priorities: [][]client.Endpoint{{
		{Address: "a1", Weight: 1, LocalityWeight: 3, Healthy: true, Locality: client.Locality{Zone: "a"}},
		{Address: "a2", Weight: 2, LocalityWeight: 3, Healthy: true, Locality: client.Locality{Zone: "a"}},
		{Address: "b1", Weight: 9, LocalityWeight: 1, Healthy: true, Locality: client.Locality{Zone: "b"}},
	}}}
	got := count(with(&client.Cluster{LocalityWeighted: true}, a), 4000)
	for address, want := range map[string]int{"a1": 1000, "a2": 2000, "b1": 1000} {
		if n := got[address]; n < want-3 || n > want+3 {
			t.Errorf("%s got %d, want %d", address, n, want)
		}
	}
}

// retry is the retry policy of the fleet's routes.
var retry = &client.RetryPolicy{Retries: 3, ExcludeHosts: true, HostAttempts: 10, PriorityFrequency: 1}

func TestRetryLeavesPrioritiesOut(t *testing.T) {
	b := with(&client.Cluster{PanicThreshold: 1}, priorities(ones(1, 0), ones(2, 0), ones(1, 0)))
	var tried Attempts
	var got []string
	for range 4 {
		h := b.Pick(start, &tried, retry)
		tried.Add(h)
		got = append(got, h.Address[:2])
	}
	// After all three priorities the choice begins again.
	if want := []string{"p0", "p1", "p2", "p0"}; !slices.Equal(got, want) {
		t.Errorf("attempts went to %v, want %v", got, want)
	}
}

func TestRetryAvoidsHosts(t *testing.T) {
	b := with(&client.Cluster{PanicThreshold: 1}, priorities([]int{1, 1, 1}))
	for range 100 {
		var tried Attempts
		seen := make(map[string]bool)
		for range 3 {
			h := b.Pick(start, &tried, retry)
			if seen[h.Address] {
				t.Fatalf("%s was tried twice", h.Address)
			}
			seen[h.Address] = true
			tried.Add(h)
		}
		// A fourth attempt accepts any host.
		if b.Pick(start, &tried, retry) == nil {
			t.Fatal("a fourth attempt should have a host")
		}
	}
}

func outlier() *client.OutlierDetection {
	return &client.OutlierDetection{ConsecutiveGateway: 3, ConsecutiveLocal: 2, SplitLocal: true, Interval: time.Second,
		BaseEjection: 2 * time.Second, MaxEjection: 10 * time.Second, MaxPercent: 100}
}

// TestEjection kills the last host of a stage while there is no control plane.
func TestEjection(t *testing.T) {
	b := with(&client.Cluster{PanicThreshold: 1, OutlierDetection: outlier()}, priorities(ones(1, 0), ones(1, 0)))
	h := b.Pick(start, new(Attempts), nil)
	if b.ReportFailure(start, h) {
		t.Fatal("one failure is not enough")
	}
	b.ReportStatus(start, h, 200)
	b.ReportFailure(start, h)
	if !b.ReportFailure(start, h) {
		t.Fatal("two in a row should eject")
	}
	if _, n := b.Size(); n != 1 {
		t.Fatalf("%d ejected", n)
	}
	if got := count(b, 50); got["p1-0"] != 50 {
		t.Fatalf("the next priority should serve: %v", got)
	}
	if got := b.Pick(start.Add(2*time.Second), new(Attempts), nil).Address; got != "p0-0" {
		t.Fatalf("after the ejection %s serves", got)
	}
	// The second ejection in a row is longer, and a time without failures shortens the
	// next one again.
	at := start.Add(2100 * time.Millisecond)
	b.ReportFailure(at, h)
	b.ReportFailure(at, h)
	if d := h.until.Sub(at); d != 4*time.Second {
		t.Errorf("the second ejection lasts %v, want 4 s", d)
	}
	b.Pick(at.Add(4*time.Second), new(Attempts), nil)
	at = at.Add(time.Hour)
	b.ReportFailure(at, h)
	b.ReportFailure(at, h)
	if d := h.until.Sub(at); d != 2*time.Second {
		t.Errorf("after an hour of peace an ejection lasts %v, want 2 s", d)
	}
}

func TestEjectionBounds(t *testing.T) {
	o := outlier()
	o.MaxPercent = 50
	b := with(&client.Cluster{PanicThreshold: 1, OutlierDetection: o}, priorities(ones(4, 0)))
	ejected := 0
	for _, h := range b.hosts {
		for range 3 {
			if b.ReportStatus(start, h, 503) {
				ejected++
			}
		}
	}
	if ejected != 2 {
		t.Errorf("%d of 4 ejected at 50 %%", ejected)
	}
	// The length of ejections is bounded by Max.
	b = with(&client.Cluster{PanicThreshold: 1, OutlierDetection: outlier()}, priorities(ones(1, 0)))
	h, at := b.hosts["p0-0"], start
	for range 10 {
		b.ReportFailure(at, h)
		b.ReportFailure(at, h)
		if d := h.until.Sub(at); d > 10*time.Second {
			t.Fatalf("an ejection lasts %v", d)
		}
		at = h.until
		b.Pick(at, new(Attempts), nil)
	}
	if d := h.until.Sub(h.updatedAt); d > 0 {
		t.Error("lastBack lies after the ejection")
	}
	// 500 is not a gateway error, and no detector here counts it.
	h = with(&client.Cluster{PanicThreshold: 1, OutlierDetection: outlier()}, priorities(ones(1, 0))).hosts["p0-0"]
	for range 10 {
		if b.ReportStatus(start, h, 500) {
			t.Fatal("a 500 ejected the host")
		}
	}
}

func TestUnsplitFailuresAreGatewayErrors(t *testing.T) {
	b := with(&client.Cluster{OutlierDetection: &client.OutlierDetection{Consecutive5xx: 2, MaxPercent: 100, BaseEjection: time.Second, MaxEjection: time.Second}}, priorities(ones(2, 0)))
	h := b.hosts["p0-0"]
	b.ReportFailure(start, h)
	if !b.ReportStatus(start, h, 502) {
		t.Error("a failure and a 502 are two in a row")
	}
}

// TestEjectionSurvivesUpdates checks that a dead host that EDS sends again stays
// ejected. A host that was removed and added counts as new.
func TestEjectionSurvivesUpdates(t *testing.T) {
	c := &client.Cluster{PanicThreshold: 1, OutlierDetection: outlier()}
	b := with(c, priorities(ones(2, 0)))
	h := b.hosts["p0-0"]
	b.ReportFailure(start, h)
	b.ReportFailure(start, h)
	b.Update(c, priorities([]int{5, 6}))
	if got := count(b, 10); got["p0-0"] != 0 {
		t.Errorf("the ejected host serves after an update: %v", got)
	}
	b.Update(c, nil)
	b.Update(c, priorities(ones(2, 0)))
	if got := count(b, 10); got["p0-0"] != 5 {
		t.Errorf("a host that was gone should begin anew: %v", got)
	}
	for range 3 {
		if b.ReportFailure(start, h) {
			t.Error("a report about the old host ejected the new one")
		}
	}
}

func BenchmarkPick(b *testing.B) {
	for _, n := range []int{1, 16, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			bal := with(&client.Cluster{PanicThreshold: 1}, priorities(slices.Repeat([]int{7}, n)))
			var tried Attempts
			b.ReportAllocs()
			for b.Loop() {
				bal.Pick(start, &tried, nil)
			}
		})
	}
}

func BenchmarkUpdate(b *testing.B) {
	bal, c := New(1), &client.Cluster{PanicThreshold: 1}
	one, two := priorities(slices.Repeat([]int{7}, 1000)), priorities(slices.Repeat([]int{8}, 1000))
	b.ReportAllocs()
	for b.Loop() {
		bal.Update(c, one)
		one, two = two, one
	}
}
