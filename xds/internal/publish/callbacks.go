package publish

import (
	"context"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
)

var _ serverv3.Callbacks = (*Ledger)(nil)

// OnDeltaStreamOpen implements serverv3.Callbacks.
func (l *Ledger) OnDeltaStreamOpen(_ context.Context, id int64, _ string) error {
	l.openStream(streamKey{false, id})
	return nil
}

// OnDeltaStreamClosed implements serverv3.Callbacks.
func (l *Ledger) OnDeltaStreamClosed(id int64, _ *corev3.Node) { l.closeStream(streamKey{false, id}) }

// OnStreamDeltaRequest implements serverv3.Callbacks. An error ends the stream.
func (l *Ledger) OnStreamDeltaRequest(id int64, req *discoveryv3.DeltaDiscoveryRequest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, err := l.streamOfLocked(streamKey{false, id}, req.GetNode())
	if err != nil {
		return err
	}
	sub := s.subscription(req.GetTypeUrl())
	sub.applyDelta(req)
	if slices.Contains(awaitedTypes, req.GetTypeUrl()) {
		s.node.subscribed[req.GetTypeUrl()] = true
	}
	l.recordReplyLocked(s, sub, req)
	return nil
}

// OnStreamDeltaResponse implements serverv3.Callbacks.
func (l *Ledger) OnStreamDeltaResponse(id int64, _ *discoveryv3.DeltaDiscoveryRequest, resp *discoveryv3.DeltaDiscoveryResponse) {
	l.recordSent(streamKey{false, id}, resp.GetTypeUrl(), deltaResponse(resp))
}

// OnStreamOpen implements serverv3.Callbacks.
func (l *Ledger) OnStreamOpen(_ context.Context, id int64, _ string) error {
	l.openStream(streamKey{true, id})
	return nil
}

// OnStreamClosed implements serverv3.Callbacks.
func (l *Ledger) OnStreamClosed(id int64, _ *corev3.Node) { l.closeStream(streamKey{true, id}) }

// OnStreamRequest implements serverv3.Callbacks. An error ends the stream.
func (l *Ledger) OnStreamRequest(id int64, req *discoveryv3.DiscoveryRequest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, err := l.streamOfLocked(streamKey{true, id}, req.GetNode())
	if err != nil {
		return err
	}
	sub := s.subscription(req.GetTypeUrl())
	sub.applySotW(req)
	l.recordReplyLocked(s, sub, req)
	return nil
}

// OnStreamResponse implements serverv3.Callbacks.
func (l *Ledger) OnStreamResponse(_ context.Context, id int64, _ *discoveryv3.DiscoveryRequest, resp *discoveryv3.DiscoveryResponse) {
	l.recordSent(streamKey{true, id}, resp.GetTypeUrl(), sotwResponse(resp))
}

func (l *Ledger) recordSent(key streamKey, typ string, r response) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.streams[key]; s != nil {
		s.subscription(typ).addSent(r)
	}
}

// OnFetchRequest implements serverv3.Callbacks. REST clients are not recorded.
func (l *Ledger) OnFetchRequest(context.Context, *discoveryv3.DiscoveryRequest) error { return nil }

// OnFetchResponse implements serverv3.Callbacks.
func (l *Ledger) OnFetchResponse(*discoveryv3.DiscoveryRequest, *discoveryv3.DiscoveryResponse) {}
