package proxy

import (
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestOrigins sends what browsers send for pages of several origins to a real Envoy and to the
// proxy: both give the same answers, and only pages of admitted origins may read them. The
// replica here admits all pages, with credentials.
func TestOrigins(t *testing.T) {
	const ours, also, theirs = "https://app.example", "http://localhost:3000", "https://evil.example"
	preflight := func(path, origin string) []string {
		return []string{"OPTIONS", path, "Origin", origin, "Access-Control-Request-Method", "POST",
			"Access-Control-Request-Headers", "authorization,content-type"}
	}
	post := func(origin string) []string { return []string{"POST", "/v1/completions", "Origin", origin} }
	const expose = " expose-headers=retry-after, x-request-id, x-cascade-stage, x-cascade-epoch"
	const asked = " max-age=7200"
	listed := func(status, origin, more string) string {
		return status + " allow-credentials=true" + more[:strings.IndexByte(more,
			'|')] + " allow-origin=" + origin + expose + more[strings.IndexByte(more, '|')+1:] + " vary=origin"
	}
	const yes = " allow-headers=authorization,content-type allow-methods=GET, HEAD, POST|" + asked
	for _, test := range []struct {
		name    string
		origins []string
		lost    string        // the answer when no replica is left
		want    [][2][]string // the request, and the answer
	}{
		{"off", nil, "503", [][2][]string{
			{preflight("/v1/completions", ours), {"405"}},
			{post(ours), {"200 allow-credentials=true allow-origin=*"}}, // the replica's own
			{post(""), {"200"}},
		}},
		{"listed", []string{ours, also}, listed("503", ours, "|"), [][2][]string{
			{preflight("/v1/chat/completions", ours), {listed("204", ours, yes)}},
			{preflight("/v1/models", also), {listed("204", also, yes)}},
			{preflight("/v1/completions", theirs), {"403"}},
			{preflight("/v1/completions", "null"), {"403"}},
			{preflight("/v1/completions", ours+".evil.example"), {"403"}},
			{preflight("/metrics", ours), {listed("404", ours, "|")}},
			{[]string{"OPTIONS", "/v1/completions", "Origin", ours}, {listed("405", ours, "|")}},
			{post(ours), {listed("200", ours, "|")}},
			{post(theirs), {"403"}},
			{post(""), {"200 allow-credentials=true" + expose + " vary=origin"}},
			{[]string{"GET", "/v1/models", "Origin", also}, {listed("200", also, "|")}},
		}},
		{"all", []string{"*"}, "503 allow-origin=*" + expose, [][2][]string{
			{preflight("/v1/completions", theirs),
				{"204 allow-headers=authorization,content-type allow-methods=GET, HEAD, POST allow-origin=*" + expose + asked}},
			{post(theirs), {"200 allow-origin=*" + expose}},
			{post(""), {"200 allow-origin=*" + expose}},
			{preflight("/metrics", theirs), {"404 allow-origin=*" + expose}},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, addresses, _ := newPublicFleet(t, test.origins...)
			for _, w := range test.want {
				for name, address := range addresses {
					before := f.hits()
					got := askFromPage(t, f, address, w[0])
					if got != w[1][0] {
						t.Errorf("%s: %q:\n got %s\nwant %s", name, w[0], got, w[1][0])
					}
					if reached := f.hits() > before; reached != strings.HasPrefix(got, "200") {
						t.Errorf("%s: %q: reached a replica: %v", name, w[0], reached)
					}
				}
			}
			for _, r := range f.fronts {
				r.kill()
			}
			// What the data planes answer themselves is for pages, too.
			for name, address := range addresses {
				if got := askFromPage(t, f, address, post(ours)); got != test.lost {
					t.Errorf("%s: without a replica: got %s, want %s", name, got, test.lost)
				}
			}
		})
	}
}

// askFromPage sends a request of a page and returns the status and what the answer says of origins.
func askFromPage(t *testing.T, f *fleet, address string, request []string) string {
	t.Helper()
	var body io.Reader
	if request[0] == "POST" {
		body = strings.NewReader(`{"model":"m","prompt":"hello"}`)
	}
	r := testkit.Must(http.NewRequest(request[0], "http://"+address+request[1], body))
	for i := 2; i < len(request); i += 2 {
		if request[i+1] != "" {
			r.Header.Set(request[i], request[i+1])
		}
	}
	resp := testkit.Must(f.client.Do(r))
	defer resp.Body.Close()
	out := resp.Status[:3]
	for _, name := range slices.Sorted(maps.Keys(resp.Header)) {
		if short, ok := strings.CutPrefix(strings.ToLower(name), "access-control-"); ok || name == "Vary" {
			out += " " + short + "=" + strings.Join(resp.Header[name], " + ")
		}
	}
	return out
}
