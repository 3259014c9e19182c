package identity

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net/url"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

var good = []struct {
	text string
	id   ID
}{
	{"spiffe://example.org/proxy/edge-1", ID{"example.org", Proxy, "edge-1"}},
	{"spiffe://example.org/migrator/r0", ID{"example.org", Migrator, "r0"}},
	{"spiffe://a/control/A.b_C-9", ID{"a", Control, "A.b_C-9"}},
	{"spiffe://10.0.0.1/operator/x", ID{"10.0.0.1", Operator, "x"}},
	{"spiffe://a_b-c/proxy/envoy%40host", ID{"a_b-c", Proxy, "envoy@host"}},
	{"spiffe://td/proxy/migrator%2Fr0", ID{"td", Proxy, "migrator/r0"}},
	{"spiffe://td/proxy/%C3%A4", ID{"td", Proxy, "ä"}},
	{"spiffe://td/proxy/%25", ID{"td", Proxy, "%"}},
	{"spiffe://td/proxy/...", ID{"td", Proxy, "..."}},
	{"spiffe://" + strings.Repeat("d", MaxTrustDomain) + "/proxy/x", ID{strings.Repeat("d", MaxTrustDomain), Proxy, "x"}},
	{"spiffe://td/proxy/" + strings.Repeat("n", MaxLength-18), ID{"td", Proxy, strings.Repeat("n", MaxLength-18)}},
}

func TestGood(t *testing.T) {
	for _, c := range good {
		id, err := Parse(c.text)
		if err != nil || id != c.id {
			t.Errorf("%.60s: %+v, %v", c.text, id, err)
		}
		if id, err := New(c.id.TrustDomain, c.id.Role, c.id.Name); err != nil || id.String() != c.text {
			t.Errorf("%.60s: its parts make %q, %v", c.text, id, err)
		}
		u, err := url.Parse(c.text)
		testkit.NoError(t, err)
		if id, err := FromCertificate(&x509.Certificate{URIs: []*url.URL{u}}); err != nil || id != c.id {
			t.Errorf("%.60s in a certificate: %+v, %v", c.text, id, err)
		}
	}
}

var bad = []struct{ text, want string }{
	{"", "must begin with"},
	{"https://td/proxy/x", "must begin with"},
	{"SPIFFE://td/proxy/x", "must begin with"},
	{"spiffe:td/proxy/x", "must begin with"},
	{"spiffe:///proxy/x", "trust domain"},
	{"spiffe://TD/proxy/x", "lower-case"},
	{"spiffe://td:443/proxy/x", "lower-case"},
	{"spiffe://user@td/proxy/x", "lower-case"},
	{"spiffe://t%64/proxy/x", "lower-case"},
	{"spiffe://" + strings.Repeat("d", MaxTrustDomain+1) + "/proxy/x", "256 bytes"},
	{"spiffe://td", "role"},
	{"spiffe://td/", "role"},
	{"spiffe://td//x", "role"},
	{"spiffe://td/workload/x", "role"},
	{"spiffe://td/Proxy/x", "role"},
	{"spiffe://td/proxy", "name"},
	{"spiffe://td/proxy/", "name"},
	{"spiffe://td/proxy/.", "name"},
	{"spiffe://td/proxy/..", "name"},
	{"spiffe://td/proxy/%2E%2E", "%XX"},
	{"spiffe://td/proxy/x/", "%XX"},
	{"spiffe://td/proxy/x/y", "%XX"},
	{"spiffe://td/proxy/x?q", "%XX"},
	{"spiffe://td/proxy/x#f", "%XX"},
	{"spiffe://td/proxy/a@b", "%XX"},
	{"spiffe://td/proxy/a%4", "%XX"},
	{"spiffe://td/proxy/a%", "%XX"},
	{"spiffe://td/proxy/a%2f", "%XX"},
	{"spiffe://td/proxy/a%zz", "%XX"},
	{"spiffe://td/proxy/%61", "%XX"},
	{"spiffe://td/proxy/%00", "control"},
	{"spiffe://td/proxy/a%0Ab", "control"},
	{"spiffe://td/proxy/%FF", "UTF-8"},
	{"spiffe://td/proxy/" + strings.Repeat("n", MaxLength-17), "2049 bytes"},
}

func TestBad(t *testing.T) {
	for _, c := range bad {
		if id, err := Parse(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60s: %+v, %v; want %q", c.text, id, err, c.want)
		}
	}
	if _, err := New("td", Proxy, strings.Repeat("@", MaxLength/2)); err == nil {
		t.Error("an identity that is too long once escaped was made")
	}
}

func TestCertificates(t *testing.T) {
	uri := func(s string) *url.URL {
		u, err := url.Parse(s)
		testkit.NoError(t, err)
		return u
	}
	one := uri("spiffe://td/proxy/edge")
	for _, c := range []struct {
		cert *x509.Certificate
		want Matcher
		err  string // "" for none
	}{
		{&x509.Certificate{URIs: []*url.URL{one}}, Matcher{"td", Proxy, "edge"}, ""},
		{&x509.Certificate{URIs: []*url.URL{one}}, Matcher{"td", Proxy, ""}, ""},
		{&x509.Certificate{URIs: []*url.URL{one}}, Matcher{"td", "", ""}, ""},
		{&x509.Certificate{URIs: []*url.URL{one}}, Matcher{"td", Proxy, "edge-2"}, "is spiffe://td/proxy/edge, and spiffe://td/proxy/edge-2 is wanted"},
		{&x509.Certificate{URIs: []*url.URL{one}}, Matcher{"td", Control, ""}, "spiffe://td/control/* is wanted"},
		{&x509.Certificate{URIs: []*url.URL{one}}, Matcher{"other", Proxy, "edge"}, "spiffe://other/proxy/edge is wanted"},
		{&x509.Certificate{URIs: []*url.URL{one}}, Matcher{}, "is wanted"},
		{&x509.Certificate{URIs: []*url.URL{one, one}}, Matcher{TrustDomain: "td"}, "2 URI names"},
		{&x509.Certificate{}, Matcher{"td", Control, ""}, "0 URI names"},
		{&x509.Certificate{URIs: []*url.URL{one}, IsCA: true}, Matcher{TrustDomain: "td"}, "authority"},
		{&x509.Certificate{URIs: []*url.URL{uri("https://td/proxy/edge")}}, Matcher{TrustDomain: "td"}, "must begin with"},
		{&x509.Certificate{URIs: []*url.URL{uri("spiffe://td/proxy/edge?")}}, Matcher{TrustDomain: "td"}, "%XX"},
		{nil, Matcher{TrustDomain: "td"}, "no certificate"},
	} {
		id, err := c.want.CheckCertificate(c.cert)
		if c.err == "" && (err != nil || id.Name != "edge") || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%v: %v, %v; want %q", c.want, id, err, c.err)
		}
	}
}

func TestNodes(t *testing.T) {
	for id, want := range map[ID]string{
		{"td", Proxy, "edge"}: "edge", {"td", Migrator, "r0"}: "migrator/r0", {"td", Control, "a"}: "", {"td", Operator, "a"}: "", {}: "",
	} {
		if got := id.NodeID(); got != want {
			t.Errorf("%v: node %q, want %q", id, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, c := range good {
		f.Add(c.text)
	}
	for _, c := range bad {
		f.Add(c.text)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := Parse(s)
		if err != nil {
			if len(err.Error()) > 1024 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		if id.String() != s {
			t.Errorf("%q was read and is written %q", s, id)
		}
		again, err := New(id.TrustDomain, id.Role, id.Name)
		if err != nil || again != id {
			t.Errorf("%q: its parts make %+v, %v", s, again, err)
		}
		if u, err := url.Parse(s); err != nil || u.Scheme != "spiffe" || u.Host != id.TrustDomain || u.Path != "/"+string(id.Role)+"/"+id.Name {
			t.Errorf("%q is another URI to net/url: %v, %v", s, u, err)
		}
		if err := Matcher(id).Check(id); err != nil {
			t.Error(err)
		}
	})
}

// TestDescribe checks by what name a certificate is shown: its first URI, its subject, or
// its first DNS name.
func TestDescribe(t *testing.T) {
	u := &url.URL{Scheme: "spiffe", Host: "td", Path: "/proxy/x"}
	subject, issuer := pkix.Name{CommonName: "s"}, pkix.Name{CommonName: "ca"}
	for want, c := range map[string]x509.Certificate{
		"spiffe://td/proxy/x": {URIs: []*url.URL{u, {Host: "other"}}, Subject: subject, DNSNames: []string{"d"}},
		"CN=s":                {Subject: subject, DNSNames: []string{"d"}},
		"d":                   {DNSNames: []string{"d", "e"}},
		"":                    {},
	} {
		c.Issuer = issuer
		if got := Describe(&c); got != want+`, issued by "CN=ca"` {
			t.Errorf("%s, want %q", got, want)
		}
	}
	if got := Describe(&x509.Certificate{DNSNames: []string{strings.Repeat("x", 10_000)}}); len(got) > 300 {
		t.Errorf("a name of 10,000 bytes is shown in %d", len(got))
	}
}

// TestUnescaped checks every byte of a name.
func TestUnescaped(t *testing.T) {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_"
	for b := range 256 {
		text := Escape(string([]byte{'x', byte(b)}))
		if stands := strings.IndexByte(plain, byte(b)) >= 0; stands != (len(text) == 2) {
			t.Errorf("byte %#x is written %q", b, text)
		}
	}
	if got := quote(strings.Repeat("x", maxQuoted)); strings.HasSuffix(got, "…") {
		t.Error("a text of the bound is cut")
	}
	if got := quote(strings.Repeat("x", maxQuoted+1)); !strings.HasSuffix(got, "…") || len(got) > maxQuoted+8 {
		t.Errorf("a longer text is shown as %s", got)
	}
}
