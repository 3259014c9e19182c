package tcp

import (
	"fmt"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// BenchmarkPull compares a pull over loopback with a plain copy of the same
// blocks.
func BenchmarkPull(b *testing.B) {
	for _, bytes := range []int64{32 << 10, 256 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("block=%dKiB", bytes>>10), func(b *testing.B) {
			l := transporttest.Scattered(bytes)
			pair := transporttest.Pair{Source: end(b, l, Config{}), Target: end(b, l, Config{})}
			p := transporttest.Opened(b, pair)
			transporttest.Interleave(b, l, pair.Source.Memory, pair.Target.Memory, map[string]func(transport.Plan) error{
				"verified": func(plan transport.Plan) error {
					_, err := p.Pull(b.Context(), plan)
					return err
				},
			})
		})
	}
}
