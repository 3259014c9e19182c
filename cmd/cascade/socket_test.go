package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/api"
)

// TestFleetBySocket runs a fleet in plain text whose components reach the control plane by its Unix socket, with both
// data planes. By TCP no report is taken.
func TestFleetBySocket(t *testing.T) {
	withEachDataPlane(t, func(t *testing.T, dataPlane func(site)) {
		dir := testkit.Must(os.MkdirTemp("", "control")) // its path is short
		t.Cleanup(func() { os.RemoveAll(dir) })
		s := newSite(t, "")
		s.write(t, fmt.Sprintf("control: {listen: %q, admin: %q, socket: %q}", s.control, s.admin, filepath.Join(dir, "s")))
		s.serve(t)
		dataPlane(s)
		s.awaitServing(t)

		conn := testkit.Must(grpc.NewClient(s.control, grpc.WithTransportCredentials(insecure.NewCredentials())))
		defer conn.Close()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		report := testkit.Must(api.NewFleetClient(conn).Report(ctx))
		_ = report.Send(&api.LoadReport{Replica: "r0"}) // fails once it is refused
		if _, err := report.Recv(); status.Code(err) != codes.PermissionDenied {
			t.Errorf("a report by TCP: %v", err)
		}
	})
}
