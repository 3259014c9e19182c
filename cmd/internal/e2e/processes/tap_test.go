package processes

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// deltaADS is the method by which Envoy requests all resources.
const deltaADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"

// wiretap counts what the control planes of a fleet send to their Envoy, on the way, so that the
// tests do not depend on the counters of either side.
type wiretap struct {
	mu      sync.Mutex
	has     map[string]string // version that Envoy has, by type and name; "" while it is unknown
	sent    []string          // resources, as type name@version
	again   []string          // those of sent that Envoy already had in that version
	streams int               // delta ADS streams that were opened
}

// count is a wiretap's counts at some time.
type count struct{ sent, again, streams int }

func (w *wiretap) count() count {
	w.mu.Lock()
	defer w.mu.Unlock()
	return count{len(w.sent), len(w.again), w.streams}
}

// since fails the test if any resource was sent a second time after c, and returns the other
// resources sent after c.
func (w *wiretap) since(t testing.TB, c count) []string {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.streams == c.streams {
		t.Error("Envoy has opened no stream since")
	}
	if again := w.again[c.again:]; len(again) > 0 {
		t.Errorf("%d resources were sent to an Envoy that had them, the first: %s", len(again), again[0])
	}
	return append([]string(nil), w.sent[c.sent:]...)
}

// key returns the name of a resource with its type.
func key(typ, name string) string { return typ[strings.LastIndexByte(typ, '.')+1:] + " " + name }

// note records a response.
func (w *wiretap) note(r *discoveryv3.DeltaDiscoveryResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range r.Resources {
		k := key(r.TypeUrl, x.Name)
		full := k + "@" + x.Version
		w.sent = append(w.sent, full)
		if w.has[k] == x.Version {
			w.again = append(w.again, full)
		} else {
			w.has[k] = "" // until its ACK, Envoy may have either version
		}
	}
	for _, name := range r.RemovedResources {
		k := key(r.TypeUrl, name)
		if _, had := w.has[k]; had { // otherwise the response means that the resource does not exist
			w.sent = append(w.sent, k+" removed")
		}
	}
}

// acknowledge records that Envoy has the resources of a response.
func (w *wiretap) acknowledge(r *discoveryv3.DeltaDiscoveryResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range r.Resources {
		w.has[key(r.TypeUrl, x.Name)] = x.Version
	}
	for _, name := range r.RemovedResources {
		delete(w.has, key(r.TypeUrl, name))
	}
}

// asIs is the codec of messages that are forwarded without decoding.
type asIs struct{}

func (asIs) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (asIs) Unmarshal(data []byte, v any) error { *v.(*[]byte) = bytes.Clone(data); return nil }
func (asIs) Name() string                       { return "proto" }

// to opens a gRPC proxy to a control plane until the test ends, and returns the proxy's address.
func (w *wiretap) to(t testing.TB, address string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	up, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodec(asIs{})),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: tick, MaxDelay: 10 * tick, Multiplier: 2}}))
	testkit.NoError(t, err)
	server := grpc.NewServer(grpc.ForceServerCodec(asIs{}), grpc.UnknownServiceHandler(func(_ any, down grpc.ServerStream) error { return w.forward(up, down) }))
	var wg sync.WaitGroup
	wg.Go(func() { server.Serve(l) })
	t.Cleanup(func() { server.Stop(); wg.Wait(); up.Close() })
	return l.Addr().String()
}

// forward forwards a stream until either side ends it, and records the messages of delta ADS before it forwards them.
func (w *wiretap) forward(to *grpc.ClientConn, down grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(down)
	ctx, cancel := context.WithCancel(down.Context())
	defer cancel()
	up, err := to.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	requests, responses := func([]byte) error { return nil }, func([]byte) error { return nil }
	if method == deltaADS {
		requests, responses = w.conversation()
	}
	go func() {
		defer up.CloseSend()
		// The server ends the stream of a client that sends what cannot be read.
		_ = pump(down.RecvMsg, requests, up.SendMsg)
	}()
	return pump(up.RecvMsg, responses, down.SendMsg)
}

// pump shows messages and forwards them until the stream ends.
func pump(recv func(any) error, show func([]byte) error, send func(any) error) error {
	for {
		var message []byte
		err := recv(&message)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = show(message)
		}
		if err == nil {
			err = send(&message)
		}
		if err != nil {
			return err
		}
	}
}

// conversation returns functions that record the requests and responses of a stream.
func (w *wiretap) conversation() (requests, responses func([]byte) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.streams++
	var open sync.Map // responses that are not acknowledged yet, by nonce
	requests = func(message []byte) error {
		var r discoveryv3.DeltaDiscoveryRequest
		if err := proto.Unmarshal(message, &r); err != nil {
			return err
		}
		if x, ok := open.LoadAndDelete(r.ResponseNonce); ok && r.ErrorDetail == nil {
			w.acknowledge(x.(*discoveryv3.DeltaDiscoveryResponse))
		}
		return nil
	}
	responses = func(message []byte) error {
		r := new(discoveryv3.DeltaDiscoveryResponse)
		if err := proto.Unmarshal(message, r); err != nil {
			return err
		}
		w.note(r)
		open.Store(r.Nonce, r)
		return nil
	}
	return requests, responses
}
