package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"crypto/tls"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	connectbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/types/known/anypb"
)

// Defaults of Config.
const (
	DefaultBackoffMin = 500 * time.Millisecond
	DefaultBackoffMax = 30 * time.Second
	DefaultKeepalive  = 30 * time.Second
)

// keepaliveTimeout is how long a ping may go unanswered.
const keepaliveTimeout = 5 * time.Second

// connectTimeout is how long a dial may take.
const connectTimeout = 10 * time.Second

// Watcher is told of every change.
type Watcher interface {
	// Update hands over the newest snapshot. It is called in order, on one
	// goroutine, which it must not hold up: the stream waits for it. The
	// snapshot is immutable and may be kept. The first call comes when the
	// client has begun to listen and may be empty.
	Update(*Snapshot)
}

// Config is what a Client needs.
type Config struct {
	// Target is the gRPC target of the ADS server, such as "127.0.0.1:18000".
	// Required unless Conn is given.
	Target string
	// TLS is the client side of the connection; nil means plain text.
	TLS *tls.Config
	// Conn is an open connection to use instead of Target and TLS. The client
	// does not close it.
	Conn grpc.ClientConnInterface
	// OtherServers are further control planes of the same fleet, tried in their order
	// while those before them are away.
	OtherServers []Server
	// NodeID names this client to the server; required.
	NodeID string
	// Cluster is the node's service cluster; default "cascade". With
	// resources.ObserverCluster no rollout waits for this client: right for one
	// that routes nothing.
	Cluster string
	// Locality is where the node runs; optional.
	Locality Locality
	// Slots are the names of extension configs to subscribe to although no listener
	// has a place for them: policy slots, for a host that runs policies. Nothing
	// waits for them. At most MaxSlots.
	Slots []string
	// CheckSlot says why a config of one of Slots cannot be taken, from its content
	// alone: the server is told so by a NACK with that text, and the config before
	// stays. It is called on the client's goroutine and must not wait: what is still
	// to be fetched is no reason. nil takes all.
	CheckSlot func(name string, typed *anypb.Any) error
	// Watcher is told of every snapshot; optional.
	Watcher Watcher
	// BackoffMin and BackoffMax bound the jittered exponential pause between
	// two connections; defaults DefaultBackoffMin and DefaultBackoffMax.
	BackoffMin, BackoffMax time.Duration
	// Keepalive is how often an idle connection is probed; default
	// DefaultKeepalive. gRPC raises it to 10 s. The server must permit it.
	Keepalive time.Duration
	// Logger gets connects, disconnects and refused resources; nil discards.
	Logger *slog.Logger
}

// Server is one more control plane: Target and TLS, or Conn, as in Config.
type Server struct {
	Target string
	TLS    *tls.Config
	Conn   grpc.ClientConnInterface
}

func (c *Config) validate() error {
	for _, o := range c.OtherServers {
		if o.Target == "" && o.Conn == nil {
			return errors.New("xds client: the Target of one of Others is empty; give the address of a control plane")
		}
	}
	switch {
	case c.Target == "" && c.Conn == nil:
		return errors.New("xds client: Target is empty; give the address of the control plane")
	case c.NodeID == "":
		return errors.New("xds client: NodeID is empty; give this proxy a name")
	case len(c.Slots) > MaxSlots || slices.Contains(c.Slots, ""):
		return fmt.Errorf("xds client: Slots: want at most %d names", MaxSlots)
	case c.BackoffMin < 0 || c.BackoffMax < 0 || c.Keepalive < 0:
		return errors.New("xds client: BackoffMin, BackoffMax and Keepalive must not be negative")
	}
	if c.Cluster == "" {
		c.Cluster = "cascade"
	}
	if c.BackoffMin == 0 {
		c.BackoffMin = DefaultBackoffMin
	}
	if c.BackoffMax == 0 {
		c.BackoffMax = DefaultBackoffMax
	}
	c.BackoffMax = max(c.BackoffMax, c.BackoffMin)
	if c.Keepalive == 0 {
		c.Keepalive = DefaultKeepalive
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Client keeps one ADS stream and the newest snapshot. Snapshot and Connected
// may be called from anywhere, Run once.
type Client struct {
	cfg       Config
	latest    atomic.Pointer[Snapshot]
	connected atomic.Bool
}

// New checks the config. It starts nothing.
func New(cfg Config) (*Client, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg}
	c.latest.Store(&Snapshot{})
	return c, nil
}

// Snapshot returns the newest tables; empty ones before the first arrived.
func (c *Client) Snapshot() *Snapshot { return c.latest.Load() }

// Connected reports whether a stream is open. Without one the last snapshot
// goes on serving.
func (c *Client) Connected() bool { return c.connected.Load() }

// Run keeps the stream open until ctx ends, and then returns nil.
func (c *Client) Run(ctx context.Context) error {
	servers := append([]Server{{c.cfg.Target, c.cfg.TLS, c.cfg.Conn}}, c.cfg.OtherServers...)
	for i, s := range servers {
		if s.Conn != nil {
			continue
		}
		own, err := c.dial(s)
		if err != nil {
			return fmt.Errorf("xds client: target %s: %w", s.Target, err)
		}
		defer own.Close()
		servers[i].Conn = own
	}
	m := newMachine(&corev3.Node{
		Id:                   c.cfg.NodeID,
		Cluster:              c.cfg.Cluster,
		Locality:             &corev3.Locality{Region: c.cfg.Locality.Region, Zone: c.cfg.Locality.Zone, SubZone: c.cfg.Locality.SubZone},
		UserAgentName:        "cascade",
		UserAgentVersionType: &corev3.Node_UserAgentVersion{UserAgentVersion: "1"},
	})
	m.subscribeSlots(c.cfg.Slots, c.cfg.CheckSlot)
	c.publish(m)
	said := make([]string, len(servers)) // of this outage: an hour of it is worth one line
	for attempt := 0; ; attempt++ {
		at := attempt % len(servers)
		server := servers[at]
		heard, err := c.runStream(ctx, server, m)
		m.disconnect()
		c.connected.Store(false)
		if ctx.Err() != nil {
			return nil
		}
		if heard {
			attempt = -1 // the first one is next
			clear(said)
		}
		// It grows from one round of all to the next.
		pause := backoff(c.cfg.BackoffMin, c.cfg.BackoffMax, max(attempt, 0)/len(servers))
		if err.Error() != said[at] {
			c.logDisconnect(server, err)
			said[at] = err.Error()
		}
		if !c.waitForRetry(ctx, m, pause) {
			return nil
		}
	}
}

// logDisconnect logs why there is no stream.
func (c *Client) logDisconnect(server Server, err error) {
	log := c.cfg.Logger
	if server.Target != "" { // a Conn tells its own in err
		log = log.With("target", server.Target)
	}
	log.Warn("no control plane; trying again, and serving the last config if there was one", "error", err)
}

func (c *Client) dial(s Server) (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if s.TLS != nil {
		creds = credentials.NewTLS(s.TLS)
	}
	// Left to itself, gRPC would dial every two minutes after a long outage.
	pause := connectbackoff.DefaultConfig
	pause.BaseDelay, pause.MaxDelay = c.cfg.BackoffMin, c.cfg.BackoffMax
	return grpc.NewClient(s.Target,
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: pause, MinConnectTimeout: connectTimeout}),
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: c.cfg.Keepalive, Timeout: keepaliveTimeout}))
}

// backoff is a pause of half to the whole of min·2^attempt, at most top.
func backoff(least, top time.Duration, attempt int) time.Duration {
	d := least
	for range attempt {
		if d *= 2; d >= top {
			d = top
			break
		}
	}
	return d/2 + rand.N(d/2+1)
}

// waitForRetry sleeps, but keeps the machine's own deadlines.
func (c *Client) waitForRetry(ctx context.Context, m *machine, pause time.Duration) bool {
	over := time.NewTimer(pause)
	defer over.Stop()
	for {
		due, stop := deadlineTimer(m)
		select {
		case <-ctx.Done():
			stop()
			return false
		case <-over.C:
			stop()
			return true
		case <-due:
			m.tick(time.Now())
			c.publish(m)
		}
		stop()
	}
}

// deadlineTimer fires at the machine's next deadline; nil channel when it has none.
func deadlineTimer(m *machine) (<-chan time.Time, func()) {
	by := m.deadline()
	if by.IsZero() {
		return nil, func() {}
	}
	t := time.NewTimer(time.Until(by))
	return t.C, func() { t.Stop() }
}

// runStream runs one ADS stream until it fails. heard says whether the server
// ever answered on it.
func (c *Client) runStream(ctx context.Context, server Server, m *machine) (heard bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	ads, err := discoveryv3.NewAggregatedDiscoveryServiceClient(server.Conn).DeltaAggregatedResources(ctx)
	if err != nil {
		cancel()
		return false, err
	}
	responses, failed := make(chan *discoveryv3.DeltaDiscoveryResponse), make(chan error, 1)
	go func() {
		for {
			r, err := ads.Recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case responses <- r:
			case <-ctx.Done():
				failed <- ctx.Err()
				return
			}
		}
	}()
	// The receiver ends with the context; waiting for it joins it.
	ended := false
	defer func() {
		cancel()
		if !ended {
			<-failed
		}
	}()

	send := func(rs []*discoveryv3.DeltaDiscoveryRequest) error {
		for _, r := range rs {
			if err := ads.Send(r); err != nil && !errors.Is(err, io.EOF) {
				return err // io.EOF: Recv has the reason
			}
		}
		return nil
	}
	if err := send(m.connect(time.Now())); err != nil {
		return false, err
	}
	for {
		due, stop := deadlineTimer(m)
		var out []*discoveryv3.DeltaDiscoveryRequest
		select {
		case err := <-failed:
			stop()
			ended = true
			return heard, err
		case r := <-responses:
			if !heard {
				heard = true
				c.connected.Store(true)
				c.cfg.Logger.Info("control plane connected", "target", server.Target)
			}
			var refused error
			if out, refused = m.receive(time.Now(), r); refused != nil {
				c.cfg.Logger.Warn("resources refused; keeping the last good ones", "type", r.GetTypeUrl(), "error", truncateError(refused))
			}
		case <-due:
			out = m.tick(time.Now())
		}
		stop()
		// Publish first: an ACK says that the config is in use.
		c.publish(m)
		if err := send(out); err != nil {
			return heard, err
		}
	}
}

// truncateError bounds an error's text for a log.
func truncateError(err error) string {
	if s := err.Error(); len(s) > maxDetail {
		return s[:maxDetail] + "…"
	}
	return err.Error()
}

func (c *Client) publish(m *machine) {
	s := m.snapshot()
	if s == nil {
		return
	}
	c.latest.Store(s)
	if c.cfg.Watcher != nil {
		c.cfg.Watcher.Update(s)
	}
}
