package config

import (
	"fmt"
	"net/textproto"
	"strings"
)

// The values of Overload.Admission.
const (
	AdmissionOn  = "on"
	AdmissionOff = "off"
)

const (
	maxTenants     = 1024
	maxTenantName  = 256 // bytes
	maxWeight      = 1 << 20
	maxPriority    = 100
	maxSlowdown    = 1000
	minSlowdown    = 1
	usualSlowdown  = 5
	controlHeaders = "x-cascade-"
)

// Overload configures what a replica does with requests that it cannot serve in time.
// It refuses them with 429 and Retry-After, so that those that run finish; migrations and
// rescues are never refused.
type Overload struct {
	// Admission is "on" or "off" (a replica takes all requests, which then wait in its engine, and time out at
	// clients after they have been computed). Comparisons and tests set it.
	Admission string `yaml:"-"`
	// Slowdown is from 1 to 1000: a request is refused if by prediction it would take more
	// than this many times as long as on an idle replica. One that need not wait is never
	// refused.
	Slowdown float64 `yaml:"slowdown,omitempty" default:"5"`
	// TenantHeader is the header field that names the tenant of a request. Your gateway
	// must set it, or clients choose their tenant themselves. Without it all requests
	// are of one tenant.
	TenantHeader string `yaml:"tenant_header,omitempty"`
	// Tenants are shares and priorities of tenants, at most 1024; others have weight 1
	// and priority 0.
	Tenants []Tenant `yaml:"tenants,omitempty"`
}

// Tenant is the share and the priority of one tenant.
type Tenant struct {
	// Name is the value of the tenant header: 1 to 256 bytes, unique.
	Name string `yaml:"name"`
	// Weight is the tenant's share of a busy replica, relative to others, 1 to 2^20. A
	// tenant beyond its share is refused sooner.
	Weight int `yaml:"weight,omitempty" default:"1"`
	// Priority is 0 to 100; 0 is refused last. Requests of priority n are refused at the
	// slowdown divided by n+1.
	Priority int `yaml:"priority,omitempty" default:"0"`
}

func (o *Overload) setDefaults() {
	setDefault(&o.Admission, AdmissionOn)
	setDefault(&o.Slowdown, usualSlowdown)
	for i := range o.Tenants {
		setDefault(&o.Tenants[i].Weight, 1)
	}
}

func (o Overload) validate(c *checker) {
	checkRange(c, "overload.slowdown", o.Slowdown, minSlowdown, maxSlowdown)
	if h := o.TenantHeader; h != "" && (textproto.TrimString(h) != h || strings.ContainsAny(h, " :\r\n\t") || strings.HasPrefix(strings.ToLower(h), controlHeaders)) {
		c.fail("overload.tenant_header", "%q: must be the name of a header field that does not begin with %s", h, controlHeaders)
	}
	if len(o.Tenants) > 0 && o.TenantHeader == "" {
		c.fail("overload.tenants", "needs overload.tenant_header, which names the tenant of a request")
	}
	if len(o.Tenants) > maxTenants {
		c.fail("overload.tenants", "%d are too many: at most %d", len(o.Tenants), maxTenants)
	}
	seen := make(map[string]bool)
	for i, t := range o.Tenants {
		at := fmt.Sprintf("overload.tenants[%d]", i)
		if t.Name == "" || len(t.Name) > maxTenantName || seen[t.Name] {
			c.fail(at+".name", "%.40q: must have 1 to %d bytes and be unique", t.Name, maxTenantName)
		}
		seen[t.Name] = true
		checkRange(c, at+".weight", t.Weight, 1, maxWeight)
		checkRange(c, at+".priority", t.Priority, 0, maxPriority)
	}
}
