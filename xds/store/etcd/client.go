// Package etcd is a store.Backend in etcd, for control planes on several hosts.
//
// New returns a Client of the keys below one prefix, which dials nothing before the first
// request. Below the prefix:
//
//	root         the root
//	FOLDER/NAME  blobs
//
// Invariants: the root changes only in a transaction that compares its revision, so of two
// writers that started from one version at most one succeeds, also where an answer is lost
// and the request is sent again.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cascadeinfer/cascade/xds/store"
)

// Config is the configuration of a Client.
type Config struct {
	// Endpoints are host:port of the members of the etcd cluster. Required.
	Endpoints []string
	// Prefix begins all keys: "/" and one or more names, without a "/" at the end.
	// Required. Two fleets must not have the same one.
	Prefix string
	// Credentials secure the connections; nil: plain text.
	Credentials credentials.TransportCredentials
	// User is the name of an etcd user; "" for none, or where the certificate names one.
	User string
	// Password returns the password of User. It is called for each new client of etcd,
	// also after etcd has refused the last one. Its errors must not contain it.
	Password func() (string, error)
}

func (c Config) validate() error {
	if len(c.Endpoints) == 0 {
		return errors.New("etcd: no endpoint; name at least one member as host:port")
	}
	for _, e := range c.Endpoints {
		if _, _, err := net.SplitHostPort(e); err != nil {
			return fmt.Errorf("etcd: endpoint %q: %w", e, err)
		}
	}
	if !strings.HasPrefix(c.Prefix, "/") || strings.HasSuffix(c.Prefix, "/") {
		return fmt.Errorf("etcd: prefix %q: must begin with / and not end with it", c.Prefix)
	}
	if (c.User == "") != (c.Password == nil) {
		return errors.New("etcd: User and Password belong together")
	}
	return nil
}

// Client is a connection to etcd. Its methods may be called by any goroutine.
type Client struct {
	cfg Config

	lock   chan struct{}    // capacity 1: held by whoever uses the fields below
	conn   *clientv3.Client // nil: not connected
	closed bool
}

// New checks the configuration. It neither reads the password nor dials.
func New(c Config) (*Client, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	if c.Credentials == nil {
		c.Credentials = insecure.NewCredentials()
	}
	return &Client{cfg: c, lock: make(chan struct{}, 1)}, nil
}

// Close ends the connections. Requests then fail.
func (c *Client) Close() error {
	c.lock <- struct{}{}
	conn := c.conn
	c.conn, c.closed = nil, true
	<-c.lock
	if conn == nil {
		return nil
	}
	if err := conn.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("etcd: close: %w", err)
	}
	return nil
}

// Bounds of the connections.
const (
	loginTimeout = 1500 * time.Millisecond // of the request that checks the password
	// A member that does not answer a ping is left after 13 s; gRPC pings no faster.
	// Until then requests find another member by the limits of their attempts.
	pingInterval = 10 * time.Second
	pingTimeout  = 3 * time.Second
	// maxBackoff bounds the pause before a member that was away is dialled again; gRPC's own
	// grows to two minutes.
	maxBackoff = time.Second
	dialPause  = 50 * time.Millisecond
	maxSend    = 2 << 20
	maxReceive = 8 << 20
)

var errClosed = errors.New("the client is closed")

// connect returns the client of etcd. With a user it waits for etcd the first time.
func (c *Client) connect(ctx context.Context) (*clientv3.Client, error) {
	select {
	case c.lock <- struct{}{}:
		defer func() { <-c.lock }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if c.closed {
		return nil, errClosed
	}
	if c.conn != nil {
		return c.conn, nil
	}
	cfg := clientv3.Config{
		DialTimeout: loginTimeout, DialKeepAliveTime: pingInterval, DialKeepAliveTimeout: pingTimeout,
		MaxCallSendMsgSize: maxSend, MaxCallRecvMsgSize: maxReceive,
		DialOptions: []grpc.DialOption{
			grpc.WithTransportCredentials(c.cfg.Credentials),
			grpc.WithChainUnaryInterceptor(failFast),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: dialPause, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxBackoff},
				MinConnectTimeout: pingTimeout,
			}),
		},
		MaxUnaryRetries: 2, // for an expired token; see call
		Logger:          zap.NewNop(),
	}
	for _, e := range c.cfg.Endpoints {
		cfg.Endpoints = append(cfg.Endpoints, "http://"+e) // whether it is TLS is up to the credentials
	}
	if c.cfg.User != "" {
		password, err := c.cfg.Password()
		if err != nil {
			return nil, store.RefusedError{Cause: err}
		}
		if password == "" {
			return nil, store.RefusedError{Cause: fmt.Errorf("the password of user %q is empty", c.cfg.User)}
		}
		cfg.Username, cfg.Password = c.cfg.User, password
	}
	conn, err := clientv3.New(cfg)
	if err != nil {
		return nil, err
	}
	c.conn = conn
	return conn, nil
}

// failFast makes a request fail while no member can be reached, with the reason; the client of
// etcd would wait, and then say only that the time is over.
func failFast(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	return invoke(ctx, method, request, reply, conn, append(options, grpc.WaitForReady(false))...)
}

// disconnect makes the next request log in again, with the password that is current then.
func (c *Client) disconnect(conn *clientv3.Client) {
	c.lock <- struct{}{}
	current := c.conn == conn
	if current {
		c.conn = nil
	}
	<-c.lock
	if current {
		_ = conn.Close()
	}
}
