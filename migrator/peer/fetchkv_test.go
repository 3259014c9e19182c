package peer

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/testkit/issuer"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/policies"
)

// serveFetch answers with the request's first block, and says when the call begins and ends.
type serveFetch struct{ begun, ended chan policies.ReplicaID }

func newServeFetch() serveFetch {
	return serveFetch{make(chan policies.ReplicaID, 10), make(chan policies.ReplicaID, 10)}
}

func (s serveFetch) serve(ctx context.Context, from policies.ReplicaID, q *api.FetchKVRequest, answer func(*api.FetchKVAnswer) error) error {
	s.begun <- from
	defer func() { s.ended <- from }()
	if q.First == 7 {
		return errors.New("no such KV")
	}
	if err := answer(&api.FetchKVAnswer{Blocks: []uint32{q.First}}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// TestFetchKV asks a peer for KV: the peer knows who asks, and keeps the KV until the caller or the
// peer ends.
func TestFetchKV(t *testing.T) {
	s := newServeFetch()
	a, b := startOnTCP(t, Config{Self: "a"}), startOnTCP(t, Config{Self: "b", ServeFetch: s.serve})
	setAllPeers(a, b)
	ctx, cancel := context.WithCancel(t.Context())
	q, err := a.FetchKV(ctx, "b", &api.FetchKVRequest{First: 3})
	if err != nil || q.Blocks[0] != 3 {
		t.Fatalf("%v, %v", q, err)
	}
	if from := <-s.begun; from != "a" {
		t.Errorf("from %s", from)
	}
	select {
	case <-s.ended:
		t.Error("the call has ended")
	default:
	}
	cancel()
	<-s.ended

	_, err = a.FetchKV(t.Context(), "b", &api.FetchKVRequest{First: 7})
	testkit.WantError(t, err, "b at "+b.address+": no such KV")
	<-s.ended
	_, err = a.FetchKV(t.Context(), "c", &api.FetchKVRequest{})
	testkit.WantError(t, err, `peer "c": not known to the control plane`)
	_, err = b.FetchKV(t.Context(), "a", &api.FetchKVRequest{})
	testkit.WantError(t, err, "no CascadeConnector: set replicas[].connector")
	b.SetPeers(map[policies.ReplicaID]string{"other": b.address})
	_, err = b.FetchKV(t.Context(), "other", &api.FetchKVRequest{})
	testkit.WantError(t, err, `this replica is b, not "other"`)

	if _, err = a.FetchKV(t.Context(), "b", &api.FetchKVRequest{First: 3}); err != nil {
		t.Fatal(err)
	}
	b.stop()
	<-s.ended
	b.mu.Lock()
	open := b.fetches
	b.mu.Unlock()
	if open != 0 {
		t.Errorf("%d calls are open", open)
	}
}

// TestFetchKVIsForItsCaller checks that who asks for KV has the certificate of the replica that it
// names.
func TestFetchKVIsForItsCaller(t *testing.T) {
	a, s := issuer.New(t), newServeFetch()
	_, at := startSecured(t, a, Config{Self: "b", ServeFetch: s.serve})
	for name, want := range map[string]codes.Code{"c": codes.OK, "d": codes.PermissionDenied} {
		own := a.ComponentCertificate(t, identity.Migrator, name)
		conn := testkit.Must(grpc.NewClient("passthrough:///"+at, grpc.WithTransportCredentials(credentials.NewTLS(a.ClientTLS(own, identity.Matcher{TrustDomain: issuer.TrustDomain})))))
		defer conn.Close()
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := api.NewPeerClient(conn).FetchKV(ctx, &api.FetchKVRequest{From: "c", To: "b"})
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != want {
			t.Errorf("%s as c: %v, want %v", name, err, want)
		}
		cancel()
	}
	if from := <-s.begun; from != "c" || len(s.begun) != 0 {
		t.Errorf("from %s, and %d more", from, len(s.begun))
	}
	<-s.ended
}

// TestFetchPrefix asks a peer for a prefix: what the peer refuses has the code of its error.
func TestFetchPrefix(t *testing.T) {
	ended := make(chan policies.ReplicaID, 1)
	serve := func(ctx context.Context, from policies.ReplicaID, q *api.FetchPrefixRequest, answer func(*api.FetchPrefixAnswer) error) error {
		if len(q.Ids) == 0 {
			return status.Error(codes.NotFound, "none of it is here")
		}
		if err := answer(&api.FetchPrefixAnswer{Tokens: uint64(len(q.Ids))}); err != nil {
			return err
		}
		<-ctx.Done()
		ended <- from
		return nil
	}
	a, b := startOnTCP(t, Config{Self: "a"}), startOnTCP(t, Config{Self: "b", ServePrefix: serve})
	setAllPeers(a, b)
	ctx, cancel := context.WithCancel(t.Context())
	q, err := a.FetchPrefix(ctx, "b", &api.FetchPrefixRequest{Ids: []uint32{1, 2}})
	if err != nil || q.Tokens != 2 {
		t.Fatalf("%v, %v", q, err)
	}
	cancel()
	if from := <-ended; from != "a" {
		t.Errorf("from %s", from)
	}
	if _, err = a.FetchPrefix(t.Context(), "b", &api.FetchPrefixRequest{}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	if _, err = b.FetchPrefix(t.Context(), "a", &api.FetchPrefixRequest{}); status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
	if _, err = a.FetchPrefix(t.Context(), "c", &api.FetchPrefixRequest{}); err == nil {
		t.Error("an unknown peer has answered")
	}
}
