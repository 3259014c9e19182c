package resources

import (
	"testing"
	"time"
)

// TestPingTimeout checks that replicas and the length service get the setting's time to answer a
// ping, 5 s by default.
func TestPingTimeout(t *testing.T) {
	for _, s := range []Settings{{}, {PingTimeout: time.Minute}} {
		want := s.PingTimeout
		if want == 0 {
			want = 5 * time.Second
		}
		c := serviceCluster("lengths", "127.0.0.1:1", s.complete())
		options := HTTP2Options(1)
		if err := c.TypedExtensionProtocolOptions[protocolOptionsKey].UnmarshalTo(options); err != nil {
			t.Fatal(err)
		}
		if got := options.GetExplicitHttpConfig().GetHttp2ProtocolOptions().GetConnectionKeepalive().GetTimeout().AsDuration(); got != want {
			t.Errorf("setting %v: the ping timeout is %v, want %v", s.PingTimeout, got, want)
		}
	}
	if err := (Settings{PingTimeout: time.Microsecond}).complete().validate(); err == nil {
		t.Error("a ping timeout of 1µs is accepted")
	}
}
