package endpointpicker

import (
	"testing"

	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestPoolHealth checks that a picker serves as soon as it knows the pool, also an empty one, and
// whatever its Model is.
func TestPoolHealth(t *testing.T) {
	status := health.NewServer()
	s := testkit.Must(New(Config{Model: "m", Health: status}))
	check := func(ready bool, want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		r := testkit.Must(status.Check(t.Context(), &healthpb.HealthCheckRequest{Service: healthExtension}))
		if r.Status != want || s.Ready() != ready {
			t.Errorf("health %v, ready %v; want %v, %v", r.Status, s.Ready(), want, ready)
		}
	}
	check(false, healthpb.HealthCheckResponse_NOT_SERVING)
	s.UpdatePool(nil)
	check(true, healthpb.HealthCheckResponse_SERVING)
}
