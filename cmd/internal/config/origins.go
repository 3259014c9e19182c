package config

import (
	"fmt"
	"regexp"
	"strings"
)

const (
	maxOrigins      = 64
	maxOriginLength = 256 // bytes
	anyOrigin       = "*"
)

// originPattern matches an origin as browsers send it, but for the ports that they leave out.
var originPattern = regexp.MustCompile(`^[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?$`)

// validateOrigins checks the origins whose pages are admitted.
func (p Proxy) validateOrigins(c *checker) {
	if len(p.Origins) > maxOrigins {
		c.fail("proxy.origins", "%d are too many: at most %d", len(p.Origins), maxOrigins)
	}
	seen := make(map[string]bool)
	for i, o := range p.Origins {
		at := fmt.Sprintf("proxy.origins[%d]", i)
		usualPort := strings.HasPrefix(o, "https:") && strings.HasSuffix(o, ":443") || strings.HasPrefix(o, "http:") && strings.HasSuffix(o, ":80")
		switch {
		case o == anyOrigin && len(p.Origins) > 1:
			c.fail(at, "%q admits the pages of all origins: remove the others, or this one", anyOrigin)
		case o != anyOrigin && (!originPattern.MatchString(o) || usualPort || len(o) > maxOriginLength):
			c.fail(at, "%.40q: must be what browsers send, in lower case, with a port only if it is not the scheme's: https://app.example", o)
		case seen[o]:
			c.fail(at, "%q: must occur once", o)
		}
		seen[o] = true
	}
}
