package routing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	connectbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/types/known/anypb"
)

// DefaultBackoffMin and DefaultBackoffMax bound the pause between two connections.
const (
	DefaultBackoffMin = 500 * time.Millisecond
	DefaultBackoffMax = 5 * time.Second
)

// keepaliveTime is how often an idle connection is probed, and keepaliveTimeout bounds the response.
// The server must permit it.
const (
	keepaliveTime    = 30 * time.Second
	keepaliveTimeout = 5 * time.Second
)

// connectTimeout bounds a connection attempt.
const connectTimeout = 10 * time.Second

// logEvery is the time between two log lines of one outage of a server, if its error changes.
const logEvery = time.Minute

// Watcher receives every change.
type Watcher interface {
	// Update receives the newest snapshot. The calls come in order on one goroutine, which
	// must not be blocked: the stream waits for it. The snapshot is immutable and may be
	// kept. The first call comes when Run starts, and its snapshot may be empty.
	Update(*Snapshot)
}

// Config is what a Client needs.
type Config struct {
	// Target is the gRPC target of the ADS server, such as "127.0.0.1:18000".
	// Required unless Conn is given.
	Target string
	// Credentials secure the connection; nil means plain text.
	Credentials credentials.TransportCredentials
	// Conn is an open connection to use instead of Target and Credentials. The client does not
	// close it.
	Conn grpc.ClientConnInterface
	// OtherServers are further control planes of the same fleet, tried in order while those
	// before them are unreachable.
	OtherServers []Server
	// NodeID names this client to the server; required.
	NodeID string
	// Cluster is the node's service cluster; default "cascade". With
	// resources.ObserverCluster no rollout waits for this client, which is right for a
	// client that routes nothing, and all replicas of its plans have weight 1.
	Cluster string
	// Slots are the names of the policy slots whose configs the client follows. At most
	// MaxSlots.
	Slots []string
	// CheckSlot returns why the config of a policy slot must be refused, judging only by its
	// content. The client then sends a NACK with that text and keeps the previous config.
	// CheckSlot is called on the client's goroutine and must not block: content that must
	// still be fetched is no reason to refuse. nil accepts all.
	CheckSlot func(name string, typed *anypb.Any) error
	// Watcher receives every snapshot; optional.
	Watcher Watcher
	// OnStream is called, on a goroutine of its own, when a control plane has answered on a
	// stream, with the connection to it. Its context ends with the stream, which waits for it to
	// return. nil: not called.
	OnStream func(context.Context, grpc.ClientConnInterface)
	// BackoffMin is the least of the jittered exponential backoff between two connections;
	// default DefaultBackoffMin.
	BackoffMin time.Duration
	// Logger gets connects, disconnects and refused resources; nil discards them.
	Logger *slog.Logger
}

// Server is another control plane: Target and Credentials, or Conn, as in Config.
type Server struct {
	Target      string
	Credentials credentials.TransportCredentials
	Conn        grpc.ClientConnInterface
}

func (c *Config) validate() error {
	for _, o := range c.OtherServers {
		if o.Target == "" && o.Conn == nil {
			return errors.New("routing client: OtherServers: Target is empty; give the address of a control plane")
		}
	}
	switch {
	case c.Target == "" && c.Conn == nil:
		return errors.New("routing client: Target is empty; give the address of the control plane")
	case c.NodeID == "":
		return errors.New("routing client: NodeID is empty; give this proxy a name")
	case len(c.Slots) > MaxSlots || slices.Contains(c.Slots, ""):
		return fmt.Errorf("routing client: Slots: want at most %d names", MaxSlots)
	case c.BackoffMin < 0:
		return errors.New("routing client: BackoffMin must not be negative")
	}
	if c.Cluster == "" {
		c.Cluster = "cascade"
	}
	if c.BackoffMin == 0 {
		c.BackoffMin = DefaultBackoffMin
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Client keeps one ADS stream and the newest snapshot. Snapshot and Connected may be
// called from any goroutine, Run once.
type Client struct {
	cfg       Config
	latest    atomic.Pointer[Snapshot]
	connected atomic.Bool
	outage    bool // an outage was logged, and not its end; owned by Run
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

// Snapshot returns the newest snapshot; it is empty before the first update.
func (c *Client) Snapshot() *Snapshot { return c.latest.Load() }

// Connected reports whether a stream is open. Without one the last snapshot stays valid.
func (c *Client) Connected() bool { return c.connected.Load() }

// Run keeps the stream open until ctx ends, and then returns nil.
func (c *Client) Run(ctx context.Context) error {
	servers := append([]Server{{c.cfg.Target, c.cfg.Credentials, c.cfg.Conn}}, c.cfg.OtherServers...)
	for i, s := range servers {
		if s.Conn != nil {
			continue
		}
		own, err := c.dial(s)
		if err != nil {
			return fmt.Errorf("routing client: target %s: %w", s.Target, err)
		}
		defer own.Close()
		servers[i].Conn = own
	}
	m := newMachine(&corev3.Node{
		Id: c.cfg.NodeID, Cluster: c.cfg.Cluster,
		UserAgentName: "cascade", UserAgentVersionType: &corev3.Node_UserAgentVersion{UserAgentVersion: "1"},
	}, c.cfg.Slots, c.cfg.CheckSlot)
	c.publish(m)
	said := make([]string, len(servers))      // by server: the last logged error of this outage
	logged := make([]time.Time, len(servers)) // by server: when it was logged
	for attempt := 0; ; attempt++ {
		at := attempt % len(servers)
		server := servers[at]
		heard, err := c.runStream(ctx, server, m)
		c.connected.Store(false)
		if ctx.Err() != nil {
			return nil
		}
		if heard {
			attempt = -1 // continue with the first server
			clear(said)
			clear(logged)
		}
		// The backoff grows after each round of all servers.
		pause := backoff(c.cfg.BackoffMin, max(attempt, 0)/len(servers))
		// An outage is logged, and new causes once a minute: they may alternate, and have ports in their texts.
		if now := time.Now(); err.Error() != said[at] && now.Sub(logged[at]) >= logEvery {
			c.logDisconnect(server, err)
			said[at], logged[at] = err.Error(), now
		}
		over := time.NewTimer(pause)
		select {
		case <-over.C:
		case <-ctx.Done():
			over.Stop()
			return nil
		}
	}
}

// logDisconnect logs why there is no stream.
func (c *Client) logDisconnect(server Server, err error) {
	log := c.cfg.Logger
	if server.Target != "" { // the error of a Conn names its target
		log = log.With("target", server.Target)
	}
	log.Warn("control plane unreachable; retrying with the last configuration in use", "error", err)
	c.outage = true
}

func (c *Client) dial(s Server) (*grpc.ClientConn, error) {
	creds := s.Credentials
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	// gRPC's default backoff would dial only every two minutes after a long outage.
	pause := connectbackoff.DefaultConfig
	pause.BaseDelay, pause.MaxDelay = c.cfg.BackoffMin, DefaultBackoffMax
	return grpc.NewClient(s.Target,
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: pause, MinConnectTimeout: connectTimeout}),
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}))
}

// backoff returns a random pause of half to all of least·2^attempt, at most DefaultBackoffMax.
func backoff(least time.Duration, attempt int) time.Duration {
	d := min(least<<min(attempt, 16), max(DefaultBackoffMax, least))
	return d/2 + rand.N(d/2+1)
}

// runStream runs one ADS stream until it fails. heard reports whether the server sent a
// response on it.
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
	// The receiver ends with the context; wait for it.
	ended := false
	var beside sync.WaitGroup
	defer func() {
		cancel()
		beside.Wait()
		if !ended {
			<-failed
		}
	}()

	send := func(rs ...*discoveryv3.DeltaDiscoveryRequest) error {
		for _, r := range rs {
			if err := ads.Send(r); err != nil && !errors.Is(err, io.EOF) {
				return err // io.EOF: Recv has the reason
			}
		}
		return nil
	}
	if err := send(m.connect()...); err != nil {
		return false, err
	}
	for {
		select {
		case err := <-failed:
			ended = true
			return heard, err
		case r := <-responses:
			if !heard {
				heard = true
				c.connected.Store(true)
				level := slog.LevelInfo
				if c.outage {
					level, c.outage = slog.LevelWarn, false
				}
				c.cfg.Logger.Log(ctx, level, "control plane connected", "target", server.Target)
				if c.cfg.OnStream != nil {
					beside.Go(func() { c.cfg.OnStream(ctx, server.Conn) })
				}
			}
			reply, refused := m.receive(r)
			if refused != nil {
				c.cfg.Logger.Warn("resources refused; keeping the last valid ones", "type", r.GetTypeUrl(), "error",
					truncate(refused.Error()))
			}
			// Publish first: an ACK means that the configuration is in use.
			c.publish(m)
			if err := send(reply...); err != nil {
				return heard, err
			}
		}
	}
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
