package shm

import (
	"fmt"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// BenchmarkPull compares a pull, verified and unverified, with a plain copy of the same
// blocks.
func BenchmarkPull(b *testing.B) {
	for _, bytes := range []int64{32 << 10, 256 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("block=%dKiB", bytes>>10), func(b *testing.B) {
			l, dir := transporttest.ScatteredLayout(bytes), transporttest.SocketDir(b)
			pair := transporttest.Pair{Source: newEnd(b, dir, l), Target: newEnd(b, dir, l)}
			p := transporttest.Start(b, pair).Open().(*puller)
			transporttest.CompareMethods(b, l, pair.Source.Memory, pair.Target.Memory, map[string]transporttest.Method{
				"verified": transporttest.PullMethod(b.Context(), p),
				"unverified": func(plan transport.Plan) (time.Duration, error) {
					for i := range plan.Src {
						for r := range l.Regions {
							copy(p.local.RegionBytes(plan.Dst[i], r), p.remote.RegionBytes(plan.Src[i], r))
						}
					}
					return 0, p.checkGrant(b.Context())
				},
			})
		})
	}
}

// BenchmarkOpen opens, pulls and closes, with the kept mapping of an earlier pull and
// with a new one: what keeping mappings saves.
func BenchmarkOpen(b *testing.B) {
	l, dir := transporttest.ScatteredLayout(256<<10), transporttest.SocketDir(b)
	pair := transporttest.Pair{Source: newEnd(b, dir, l), Target: newEnd(b, dir, l)}
	transporttest.Start(b, pair).Open().Close()
	target := pair.Target.Transport.(*Transport)
	pullOnce := func(plan transport.Plan) (time.Duration, error) {
		start := time.Now()
		offer, err := pair.Source.Transport.Export(transport.Grant{Migration: "m/2", Receiver: transporttest.Receiver, Deadline: start.Add(time.Hour)})
		if err != nil {
			return 0, err
		}
		p, err := target.Open(b.Context(), transporttest.Receiver, offer)
		if err != nil {
			return 0, err
		}
		defer p.Close()
		_, err = p.Pull(b.Context(), plan)
		return time.Since(start), err
	}
	transporttest.CompareMethods(b, l, pair.Source.Memory, pair.Target.Memory, map[string]transporttest.Method{
		"kept": pullOnce,
		"remapped": func(plan transport.Plan) (time.Duration, error) {
			target.mappings.setKeepIdle(false)
			target.mappings.setKeepIdle(true)
			return pullOnce(plan)
		},
	})
}
