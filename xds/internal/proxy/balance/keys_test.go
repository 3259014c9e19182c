package balance

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/xds/client"
)

var byKeys = &client.Cluster{HashKeys: true, PanicThreshold: 1, OutlierDetection: outlier()}

const keys = 4000

// homes returns the address of each key's host.
func homes(b *Balancer) []string {
	out := make([]string, keys)
	for i := range out {
		if h := b.Pick(start, &Attempts{Key: fmt.Sprint("key ", i)}, nil); h != nil {
			out[i] = h.Address
		}
	}
	return out
}

// moved returns how many keys have other hosts, without those whose host was or is the
// given one.
func moved(was, is []string, address string) (all, others int) {
	for i := range was {
		if was[i] != is[i] {
			all++
			if was[i] != address && is[i] != address {
				others++
			}
		}
	}
	return all, others
}

// TestKeysStay checks that a host which comes, goes, is ejected or gets another health moves
// its own keys and no others.
func TestKeysStay(t *testing.T) {
	for _, n := range []int{1, 2, 4, 8, 16} {
		hosts := slices.Repeat([]int{1}, n)
		b := with(byKeys, priorities(hosts))
		before := homes(b)
		b.Update(byKeys, priorities(append(hosts, 1)))
		address := fmt.Sprint("p0-", n)
		grown := homes(b)
		share := 1 / float64(n+1)
		all, others := moved(before, grown, address)
		if slack := 4 * math.Sqrt(share*keys); others != 0 || math.Abs(float64(all)-share*keys) > slack {
			t.Errorf("%d hosts and one more: %d keys moved, %d of them between others; want %.0f and none", n, all, others, share*keys)
		}
		b.Update(byKeys, priorities(append(hosts, -1)))
		if !slices.Equal(homes(b), before) {
			t.Errorf("%d hosts: with an unhealthy one more, keys moved", n)
		}
		b.Update(byKeys, priorities(append(hosts, 1)))
		last := b.hosts[address]
		for range 2 {
			b.ReportFailure(start, last)
		}
		if !slices.Equal(homes(b), before) {
			t.Errorf("%d hosts: with an ejected one more, keys moved", n)
		}
		b.Pick(start.Add(time.Minute), new(Attempts), nil) // the ejection ends
		if !slices.Equal(homes(b), grown) {
			t.Errorf("%d hosts: after an ejection, keys are not where they were", n)
		}
	}
}

// TestKeysAreTheSameEverywhere checks that neither the seed nor the order of the endpoints nor
// what came before changes a key's host.
func TestKeysAreTheSameEverywhere(t *testing.T) {
	a := priorities(slices.Repeat([]int{1}, 7), []int{1})
	want := homes(with(byKeys, a))
	other := New(99)
	other.Update(byKeys, priorities([]int{1}))
	slices.Reverse(a.Priorities[0])
	other.Update(byKeys, a)
	if !slices.Equal(homes(other), want) {
		t.Error("two balancers disagree")
	}
}

// TestKeyShares checks that hosts have keys in proportion to their weights, all of them in the
// first priority that is healthy.
func TestKeyShares(t *testing.T) {
	weights := []int{1, 2, 3, 4}
	got := make(map[string]int)
	for _, h := range homes(with(byKeys, priorities(weights, []int{5}))) {
		got[h]++
	}
	for i, w := range weights {
		want := float64(keys*w) / 10
		if n := got[fmt.Sprint("p0-", i)]; math.Abs(float64(n)-want) > 5*math.Sqrt(want) {
			t.Errorf("weight %d: %d of %d keys, want %.0f", w, n, keys, want)
		}
	}
	got = make(map[string]int)
	for _, h := range homes(with(byKeys, priorities(ones(0, 3), ones(2, 0)))) {
		got[h[:2]]++
	}
	if got["p1"] != keys {
		t.Errorf("without a healthy host in the first priority: %v", got)
	}
	if h := with(byKeys, nil).Pick(start, &Attempts{Key: "x"}, nil); h != nil {
		t.Error("a cluster without hosts has one")
	}
}

// TestKeyRetries checks that a retry leaves the tried host out, and the tried priority if the
// policy says so; at the end it begins again.
func TestKeyRetries(t *testing.T) {
	b := with(byKeys, priorities(ones(3, 0)))
	tried := Attempts{Key: "x"}
	var got []string
	for range 4 {
		h := b.Pick(start, &tried, retry)
		tried.Add(h)
		got = append(got, h.Address)
	}
	if got[3] != got[0] || len(slices.Compact(slices.Sorted(slices.Values(got[:3])))) != 3 {
		t.Errorf("attempts went to %v", got)
	}
	b = with(byKeys, priorities(ones(1, 0), ones(2, 0), ones(1, 0)))
	tried, got = Attempts{Key: "x"}, nil
	for range 4 {
		h := b.Pick(start, &tried, retry)
		tried.Add(h)
		got = append(got, h.Address[:2])
	}
	if want := []string{"p0", "p1", "p2", "p0"}; !slices.Equal(got, want) {
		t.Errorf("attempts went to %v, want %v", got, want)
	}
}

// TestWithoutKey checks that a request without a key, and any request of another cluster, is
// balanced in turn.
func TestWithoutKey(t *testing.T) {
	for name, b := range map[string]*Balancer{"no key": with(byKeys, priorities(ones(4, 0))), "no hashing": with(&client.Cluster{}, priorities(ones(4, 0)))} {
		got := make(map[string]int)
		for range 400 {
			key := ""
			if name == "no hashing" {
				key = "x"
			}
			got[b.Pick(start, &Attempts{Key: key}, nil).Address]++
		}
		if len(got) != 4 || got["p0-0"] != 100 {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func BenchmarkPickByKey(b *testing.B) {
	for _, n := range []int{4, 16, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			l := with(byKeys, priorities(slices.Repeat([]int{1}, n)))
			b.ReportAllocs()
			a := Attempts{Key: "0123456789abcdef"}
			for b.Loop() {
				l.Pick(start, &a, nil)
			}
		})
	}
}
