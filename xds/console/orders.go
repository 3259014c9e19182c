package console

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode"
)

// TokenHeader carries the token with each order. A page of another site cannot send it: a browser asks
// the server first, which does not allow it.
const TokenHeader = "X-Cascade-Console-Token"

// MinToken and MaxToken bound a token, in bytes. Shorter ones could be guessed.
const (
	MinToken = 16
	MaxToken = 256
)

// CheckToken returns an error if a browser could not send the token, or it could be guessed.
func CheckToken(token string) error {
	switch {
	case len(token) < MinToken || len(token) > MaxToken:
		return fmt.Errorf("a token of %d bytes: must have %d to %d; \"openssl rand -hex 16\" makes one", len(token), MinToken, MaxToken)
	case strings.IndexFunc(token, func(r rune) bool { return r > unicode.MaxASCII || !unicode.IsGraphic(r) || r == ' ' }) >= 0:
		return errors.New("a token must have printable ASCII characters only, without spaces")
	}
	return nil
}

// ordersPath is where the page gives orders.
const ordersPath = "/console/orders"

// offered are the orders that the page offers, below ordersPath and in Config.Orders.
var offered = [...]string{"/drain", "/undrain", "/plan/pin", "/plan/unpin", "/plan/rollback"}

// serveOrders passes orders that come with the token on.
func (c *Console) serveOrders(w http.ResponseWriter, r *http.Request) {
	want, got := sha256.Sum256([]byte(c.cfg.Token)), sha256.Sum256([]byte(r.Header.Get(TokenHeader)))
	if subtle.ConstantTimeCompare(want[:], got[:]) != 1 {
		c.cfg.Logger.Warn("console order refused", "path", r.URL.Path, "client", r.RemoteAddr)
		writeError(w, http.StatusForbidden, &FieldError{Field: "token", Text: "is not the one in the file that control.console_token_file names"})
		return
	}
	http.StripPrefix(ordersPath, c.cfg.Orders).ServeHTTP(w, r)
}
