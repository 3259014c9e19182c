package wire

import (
	"github.com/cascadeinfer/cascade/cmd/config"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/outlier"
	"github.com/cascadeinfer/cascade/policies/refine"
)

// Bidask is the market's Config of one replica, without First. Its times are
// those of messages and people, which emulated engines do not shrink.
func (f *Fleet) Bidask(r config.Replica) bidask.Config {
	m := f.Migration
	c := bidask.Config{
		Self: policies.ReplicaID(r.ID), Quoter: bidask.Backlog{}, Selector: bidask.LeastLoad{},
		Sample: m.Sample, SendSlots: m.Slots, ReceiveSlots: m.Slots,
	}
	if m.Sample == config.SampleAll {
		c.Sample = bidask.AskAll
	}
	if m.Select == "paper" {
		c.Selector = bidask.Paper{}
	}
	return c
}

// Detector tells when a replica of the fleet carries more than its share.
func (f *Fleet) Detector() policies.Detector {
	return outlier.Detector{Percent: f.Migration.OutlierPercent}
}

// Refiner proposes boundaries at run time; nil where re-planning alone moves
// them.
func (f *Fleet) Refiner() policies.Refiner {
	if f.Preset != "paper" {
		return nil
	}
	return refine.Paper{}
}

// LinkRate is the pace of transfers into an emulated replica, in bytes per
// second of wall time.
func (f *Fleet) LinkRate() float64 {
	const bytesPerGbit = 1e9 / 8
	return f.Migration.LinkGbps * bytesPerGbit * f.Speed
}

// Blocks is the directory of a replica's block-table sockets; "" for none.
func (f *Fleet) Blocks(r config.Replica) string { return f.path(r.Blocks) }
