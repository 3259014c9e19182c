package handofftest_test

import (
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/handofftest"
	"github.com/cascadeinfer/cascade/engine/emulator"
)

func TestPrefixPulls(t *testing.T) {
	p, c, _ := newConnectedPair(t, emulator.Config{}, 512)
	handofftest.PlayPrefixPulls(t, "tiny", p.Engines, c.Edit)
}
