package pull

import (
	"crypto/x509"
	"errors"
	"log/slog"

	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/policies"
)

// ReceiverCheck binds tickets to certificates: the certificate of the connection on which
// a ticket arrives must be that of the migrator of the ticket's receiver. It is checked
// before Redeem, so that a stolen ticket stays good for its receiver.
type ReceiverCheck struct {
	// TrustDomain is the trust domain of the certificates; "" checks nothing.
	TrustDomain string
	// Transport is the transport's name, for the log.
	Transport string
	Logger    *slog.Logger
}

// Check returns why the owner of a certificate cannot be the receiver. The certificate is
// nil when the peer presented none. It logs failures.
func (c *ReceiverCheck) Check(cert *x509.Certificate, receiver policies.ReplicaID) error {
	if c.TrustDomain == "" {
		return nil
	}
	err := errors.New("the hello does not name a receiver")
	if receiver != "" {
		want := identity.Matcher{TrustDomain: c.TrustDomain, Role: identity.Migrator, Name: string(receiver)}
		_, err = want.CheckCertificate(cert)
	}
	if err != nil {
		c.Logger.Warn("rejected a receiver: its certificate does not match its ticket", "transport", c.Transport, "receiver", string(receiver), "err", err)
	}
	return err
}
