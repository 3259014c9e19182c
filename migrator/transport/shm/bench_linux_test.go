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
