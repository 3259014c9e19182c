package certs

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

const (
	// maxExpiryNotice is how long before the end of a certificate the warnings begin, or in
	// the last quarter of its lifetime, whichever is later.
	maxExpiryNotice = 14 * 24 * time.Hour
	// expiryReminder is the time between two warnings about one file.
	expiryReminder = 24 * time.Hour
)

// expiry is the end of one certificate in a file.
type expiry struct {
	file string
	cert *x509.Certificate
}

// left returns how long the certificate is valid, and whether its end is near enough for a warning.
func (e expiry) left(now time.Time) (left time.Duration, due bool) {
	left = e.cert.NotAfter.Sub(now)
	return left, left < min(maxExpiryNotice, e.cert.NotAfter.Sub(e.cert.NotBefore)/4)
}

// expiryWatch warns of certificates that expire.
type expiryWatch struct {
	log    *slog.Logger
	warned map[expiryWarning]time.Time // when it last did
}

// expiryWarning is one of the two warnings about a file.
type expiryWarning struct {
	file    string
	expired bool
}

func newExpiryWatch(log *slog.Logger) *expiryWatch {
	return &expiryWatch{log: log, warned: make(map[expiryWarning]time.Time)}
}

// check warns of the certificates that expire soon, or have, once a day. The end of a
// certificate is logged at once, however recent the warning before it is.
func (w *expiryWatch) check(all []expiry, now time.Time) {
	for _, e := range all {
		left, due := e.left(now)
		warning := expiryWarning{e.file, left <= 0}
		if !due || now.Sub(w.warned[warning]) < expiryReminder {
			continue
		}
		w.warned[warning] = now
		at := []any{"file", e.file, "certificate", identity.Describe(e.cert), "until", e.cert.NotAfter}
		if left <= 0 {
			w.log.Error("certificate has expired; connections fail until the file has a new one", at...)
		} else {
			w.log.Warn("certificate expires soon; replace the file", append(at, "left", left.Round(time.Minute))...)
		}
	}
}

// authorities returns the certificates in a PEM file.
func authorities(text string) (out []*x509.Certificate) {
	for rest := []byte(text); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return out
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			out = append(out, c)
		}
	}
}

// earliest returns the certificate that expires first.
func earliest(all []*x509.Certificate) (first *x509.Certificate) {
	for _, c := range all {
		if first == nil || c.NotAfter.Before(first.NotAfter) {
			first = c
		}
	}
	return first
}

var expiresAt = prometheus.NewDesc("cascade_certificate_expiry_timestamp_seconds", "When the certificate in a file expires; of several in one file, the first.", []string{"file"}, nil)

// Expiries is the metric of when certificates expire. Each of both may be nil.
type Expiries struct {
	Own  *Provider
	Edge *Downstream
}

var _ prometheus.Collector = Expiries{}

// Describe implements prometheus.Collector.
func (Expiries) Describe(to chan<- *prometheus.Desc) { to <- expiresAt }

// Collect implements prometheus.Collector.
func (x Expiries) Collect(to chan<- prometheus.Metric) {
	for _, e := range x.all() {
		to <- prometheus.MustNewConstMetric(expiresAt, prometheus.GaugeValue, float64(e.cert.NotAfter.Unix()), e.file)
	}
}

func (x Expiries) all() (all []expiry) {
	if x.Own != nil {
		all = x.Own.expiries()
	}
	if x.Edge != nil {
		all = append(all, x.Edge.expiries()...)
	}
	return all
}

// Problems returns the certificates that expire soon, or have, and the new files that are rejected.
func (x Expiries) Problems(now time.Time) (out []loadreport.Problem) {
	for _, why := range x.rejections() {
		out = append(out, loadreport.Problem{Kind: loadreport.ProblemCertificate, Text: "new certificate files are rejected, and the last valid ones stay in use: " + why})
	}
	for _, e := range x.all() {
		left, due := e.left(now)
		switch {
		case !due:
			continue
		case left <= 0:
			out = append(out, loadreport.Problem{Kind: loadreport.ProblemCertificate, Text: fmt.Sprintf("%s: the certificate %s has expired; connections fail until the file has a new one", e.file, identity.Describe(e.cert))})
		default:
			out = append(out, loadreport.Problem{Kind: loadreport.ProblemCertificate, Text: fmt.Sprintf("%s: the certificate %s expires at %s; replace the file", e.file, identity.Describe(e.cert), e.cert.NotAfter.UTC().Format(time.RFC3339))})
		}
	}
	return out
}

// rejections lists why new files are rejected.
func (x Expiries) rejections() (out []string) {
	if x.Own != nil {
		out = append(out, x.Own.files.rejection())
	}
	if x.Edge != nil {
		out = append(out, x.Edge.files.rejection())
	}
	return slices.DeleteFunc(out, func(why string) bool { return why == "" })
}

// expiries returns the ends of the own certificate and of the authorities.
func (k *Provider) expiries() []expiry {
	m := k.files.current()
	return []expiry{{k.cfg.Cert, m.cert.Leaf}, {k.cfg.CA, m.authority}}
}

func (d *Downstream) expiries() []expiry {
	return []expiry{{d.cfg.Cert, d.files.current().cert.Leaf}}
}
