package replay

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// The test uses real sockets and both protocols.
func TestProtocols(t *testing.T) {
	for want, http2 := range map[int]bool{1: false, 2: true} {
		f := &fake{}
		major := make(chan int, 20)
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			major <- r.ProtoMajor
			f.ServeHTTP(w, r)
		}))
		server.Config.Protocols = new(http.Protocols)
		server.Config.Protocols.SetHTTP1(true)
		server.Config.Protocols.SetUnencryptedHTTP2(true)
		server.Start()
		replay, err := New(Config{Target: server.URL + "/", Model: "m", Requests: every(0, 20, 9000, 50), HTTP2: http2})
		testkit.NoError(t, err)
		result, err := replay.Run(t.Context())
		server.Close()
		if err != nil || result.Completed != 20 || result.Records[19].Tokens != 50 {
			t.Errorf("HTTP/%d: completed %d, failures %+v, %v", want, result.Completed, result.Failures, err)
		}
		for range 20 {
			if got := <-major; got != want {
				t.Fatalf("HTTP/%d was spoken, not HTTP/%d", got, want)
			}
		}
	}
}
