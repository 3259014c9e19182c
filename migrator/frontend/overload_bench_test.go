package frontend

import (
	"fmt"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/admission"
)

// BenchmarkAdmit counts a leg and its end while so many tenants have requests. It allocates for a
// new tenant only.
func BenchmarkAdmit(b *testing.B) {
	for _, tenants := range []int{1, admission.MaxTenants} {
		b.Run(fmt.Sprintf("%d tenants", tenants), func(b *testing.B) {
			a := newAdmittedWork(Config{Cost: policies.Cost{D0: 0.01}, KVTokens: 1 << 40, Overload: Overload{TenantHeader: "X-Tenant"}})
			lr := &legRequest{}
			lr.arrival.Estimate = 100
			for i := range tenants {
				lr.tenant = fmt.Sprint("t", i)
				testkit.Must(a.admit(lr))
			}
			b.ReportAllocs()
			for b.Loop() {
				s := testkit.Must(a.admit(lr))
				a.end(&s, 0, false)
			}
		})
	}
}
