package resources

import (
	"errors"
	"fmt"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	earlyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"

	"github.com/cascadeinfer/cascade/policies/length"
)

func (p *proof) proveListeners(s Set) error {
	for _, l := range p.listeners {
		f := p.facts[resourceKey{ListenerType, l.Name}]
		var err error
		if f.manager == nil {
			f.manager, err = managerOf(l)
		}
		if err == nil {
			err = p.proveManager(f.manager)
		}
		if err == nil && l.ApiListener == nil {
			err = f.proveOnce(func() error { return proveEdge(f.manager) })
		}
		if err == nil {
			err = proveEdgeTLS(s, l)
		}
		if err != nil {
			return fmt.Errorf("listener %q: %w", l.Name, err)
		}
	}
	return nil
}

// managerOf returns the HTTP connection manager of a listener of either kind.
func managerOf(l *listenerv3.Listener) (*hcmv3.HttpConnectionManager, error) {
	packed := l.GetApiListener().GetApiListener()
	if packed == nil {
		if len(l.FilterChains) != 1 || len(l.FilterChains[0].Filters) != 1 {
			return nil, errors.New("must have one filter, the HTTP connection manager")
		}
		packed = l.FilterChains[0].Filters[0].GetTypedConfig()
	}
	hcm := new(hcmv3.HttpConnectionManager)
	if err := packed.UnmarshalTo(hcm); err != nil {
		return nil, err
	}
	if err := hcm.ValidateAll(); err != nil {
		return nil, err
	}
	return hcm, nil
}

// proveManager checks the requirements of both kinds of listener.
func (p *proof) proveManager(hcm *hcmv3.HttpConnectionManager) error {
	if name := hcm.GetRds().GetRouteConfigName(); p.routes[name] == nil {
		return fmt.Errorf("route table %q does not exist", name)
	}
	if hcm.GetRds().GetConfigSource().GetAds() == nil {
		return errors.New("routes must come over ADS")
	}
	n := len(hcm.HttpFilters)
	if n == 0 || !hcm.HttpFilters[n-1].GetTypedConfig().MessageIs(&routerv3.Router{}) {
		return errors.New("the last filter must be the router")
	}
	return nil
}

// proveEdge checks the trust boundary and the disabled filters of a proxy's listener.
func proveEdge(hcm *hcmv3.HttpConnectionManager) error {
	model, control, envoy := false, false, false
	for _, ext := range hcm.EarlyHeaderMutationExtensions {
		early := new(earlyv3.HeaderMutation)
		if ext.GetTypedConfig().MessageIs(early) {
			if err := ext.TypedConfig.UnmarshalTo(early); err != nil {
				return err
			}
		}
		for _, m := range early.Mutations {
			model = model || m.GetRemove() == length.ModelHeader
			control = control || m.GetRemoveOnMatch().GetKeyMatcher().GetPrefix() == length.ControlPrefix
			envoy = envoy || m.GetRemoveOnMatch().GetKeyMatcher().GetPrefix() == EnvoyPrefix
		}
	}
	if !model || !control || !envoy {
		return fmt.Errorf("a client's %s*, %s* and %s must be removed before routing", length.ControlPrefix, EnvoyPrefix, length.ModelHeader)
	}
	if n := hcm.GetHttp2ProtocolOptions().GetMaxConcurrentStreams().GetValue(); n == 0 || n > ClientStreams {
		return fmt.Errorf("HTTP/2: %d streams for a client's connection, want 1 to %d", n, ClientStreams)
	}
	if !hcm.GetNormalizePath().GetValue() || hcm.MergeSlashes || hcm.PathWithEscapedSlashesAction != hcmv3.HttpConnectionManager_UNESCAPE_AND_FORWARD {
		return errors.New("paths must be normalised before routing: dot segments and escaped slashes, and nothing else")
	}
	if hcm.GetStreamIdleTimeout().AsDuration() <= 0 {
		return errors.New("stream idle timeout is missing")
	}
	slot, callout := false, false
	for _, f := range hcm.HttpFilters {
		switch f.Name {
		case LengthFilter:
			d := f.GetConfigDiscovery()
			slot = d.GetDefaultConfig() != nil && d.GetApplyDefaultConfigWithoutWarming()
		case ExtProcFilter:
			callout = f.Disabled
		}
	}
	if !slot {
		return fmt.Errorf("the ECDS filter %q must exist with a default, or requests fail until it has a configuration", LengthFilter)
	}
	if !callout {
		return fmt.Errorf("%s must exist and be disabled: routes enable it", ExtProcFilter)
	}
	return nil
}
