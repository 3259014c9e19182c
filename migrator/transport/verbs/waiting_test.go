package verbs

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/transport/lease"
)

// TestAttackIdleStreams opens more streams that present no ticket than there may be pulls: the
// oldest make room, and a receiver with a ticket pulls.
func TestAttackIdleStreams(t *testing.T) {
	requireNothingOpen(t)
	l := start(t, layout(8, 512), layout(8, 512))
	conn, err := grpc.NewClient(l.Export(l.Grant()).Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	testkit.NoError(t, err)
	defer conn.Close()
	var first grpc.ClientStream
	for i := range lease.MaxSessions + 1 {
		s, err := conn.NewStream(t.Context(), &service.Streams[0], attachMethod)
		testkit.NoError(t, err)
		if i == 0 {
			first = s
		}
	}
	if err := first.RecvMsg(&wrapperspb.BytesValue{}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the oldest stream ends with %v", err)
	}
	puller := l.Open()
	l.RequirePull(puller, l.Plan(2, 1))
	puller.Close()
}
