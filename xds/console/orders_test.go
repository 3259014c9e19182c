package console

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

const token = "0123456789abcdef"

// TestOrders: an order is passed on with the token only, from the own page or a program, and only if it
// is one of those that the page offers.
func TestOrders(t *testing.T) {
	var got []string
	var log testkit.Log
	c := testkit.Must(New(Config{Source: &fakeSource{}, Token: token, Logger: log.Logger(), Orders: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got = append(got, fmt.Sprint(r.Method, " ", r.URL))
	})}))
	for _, tc := range []struct {
		method, path, token, origin string
		want                        int
	}{
		{"POST", "/console/orders/drain?replica=r1", token, "", http.StatusOK},
		{"POST", "/console/orders/plan/rollback?model=m&epoch=3", token, "http://example.com", http.StatusOK},
		{"POST", "/console/orders/drain?replica=r1", "", "", http.StatusForbidden},
		{"POST", "/console/orders/drain?replica=r1", token[:15], "", http.StatusForbidden},
		{"POST", "/console/orders/drain?replica=r1", token + "0", "", http.StatusForbidden},
		{"POST", "/console/orders/drain?replica=r1", token, "http://evil.example", http.StatusForbidden},
		{"POST", "/console/orders/policies/push", token, "", http.StatusNotFound},
		{"POST", "/console/orders/", token, "", http.StatusNotFound},
		{"GET", "/console/orders/drain?replica=r1", token, "", http.StatusMethodNotAllowed},
		{"OPTIONS", "/console/orders/drain", "", "http://evil.example", http.StatusMethodNotAllowed},
	} {
		r := httptest.NewRequest(tc.method, tc.path, nil)
		if tc.token != "" {
			r.Header.Set(TokenHeader, tc.token)
		}
		if tc.origin != "" {
			r.Header.Set("Origin", tc.origin)
		}
		w := httptest.NewRecorder()
		c.ServeHTTP(w, r)
		if w.Code != tc.want || w.Header().Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s %s from %q with token %q: %d %s, want %d", tc.method, tc.path, tc.origin, tc.token, w.Code, w.Body, tc.want)
		}
	}
	if want := "POST /drain?replica=r1, POST /plan/rollback?model=m&epoch=3"; strings.Join(got, ", ") != want {
		t.Errorf("orders %q, want %s", got, want)
	}
	if strings.Contains(log.String(), token) || !strings.Contains(log.String(), "console order refused") {
		t.Errorf("the log: %s", &log)
	}
}

// TestOrdersAreOff: without a token there are no orders, whatever a request carries.
func TestOrdersAreOff(t *testing.T) {
	c := newConsole(t, &fakeSource{})
	for _, sent := range []string{"", token} {
		r := httptest.NewRequest(http.MethodPost, "/console/orders/drain?replica=r1", nil)
		r.Header.Set(TokenHeader, sent)
		w := httptest.NewRecorder()
		if c.ServeHTTP(w, r); w.Code != http.StatusNotFound {
			t.Errorf("%q: %d", sent, w.Code)
		}
	}
	if event := string(c.render(time.Now())); !strings.Contains(event, `"orders":false`) {
		t.Errorf("the page is sent %.300s", event)
	}
}

func TestCheckToken(t *testing.T) {
	for text, want := range map[string]string{
		token: "", strings.Repeat("x", MaxToken): "", "short": "16 to 256", strings.Repeat("x", MaxToken+1): "16 to 256", "": "16 to 256",
		"0123456789 abcdef": "printable", "0123456789abcde\n": "printable", "0123456789abcdeé": "printable",
	} {
		if err := CheckToken(text); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, cfg := range []Config{{Token: "short", Orders: http.NotFoundHandler()}, {Token: token}} {
		cfg.Source = &fakeSource{}
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
}
