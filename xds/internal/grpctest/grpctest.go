// Package grpctest has replicas and clients that are grpc-go's own, without any code of this repository.
package grpctest

import (
	"context"
	"encoding/json"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/xds"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/length"
)

// StartReplica starts a replica that answers every call with its name, and returns its address.
func StartReplica(t testing.TB, id string) string {
	t.Helper()
	listener := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		if err := s.RecvMsg(new(emptypb.Empty)); err != nil {
			return err
		}
		if err := s.SetHeader(metadata.Pairs("x-replica", id)); err != nil {
			return err
		}
		return s.SendMsg(new(emptypb.Empty))
	}))
	done := make(chan struct{})
	go func() { defer close(done); server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-done })
	return listener.Addr().String()
}

// Bootstrap returns the bootstrap of a client of a control plane.
func Bootstrap(controlPlane string) []byte {
	return testkit.Must(json.Marshal(map[string]any{
		"node": map[string]any{"id": "grpc-1"},
		"xds_servers": []any{map[string]any{
			"server_uri": controlPlane, "channel_creds": []any{map[string]any{"type": "insecure"}}, "server_features": []string{"xds_v3"},
		}},
	}))
}

// Dial connects grpc-go's xDS client and returns a function that makes a call of a length ("" for none), and returns
// the replica that answered.
func Dial(t testing.TB, bootstrap []byte, target string) func(tokens string) (replica string, err error) {
	t.Helper()
	resolver := testkit.Must(xds.NewXDSResolverWithConfigForTesting(bootstrap))
	conn := testkit.Must(grpc.NewClient(target, grpc.WithResolvers(resolver), grpc.WithTransportCredentials(insecure.NewCredentials())))
	t.Cleanup(func() { conn.Close() })
	return func(tokens string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if tokens != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, length.TokensHeader, tokens)
		}
		var header metadata.MD
		err := conn.Invoke(ctx, "/cascade.test/Call", new(emptypb.Empty), new(emptypb.Empty), grpc.Header(&header))
		return strings.Join(header.Get("x-replica"), ","), err
	}
}
