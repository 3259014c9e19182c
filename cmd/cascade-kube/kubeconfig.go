package main

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
)

// Limits of the requests to the API server. client-go's own, 5 a second, would spread the conditions of
// 10,000 Pods over half an hour.
const (
	requestRate  = 50 // a second
	requestBurst = 100
)

// kubeconfigFlag adds --kubeconfig.
func kubeconfigFlag(c *cobra.Command, to *string) {
	c.Flags().StringVar(to, "kubeconfig", "", "file that says where the API server is and how to log in; default: the ServiceAccount of this Pod")
}

// loadKubeconfig returns how to reach the API server of a kubeconfig file or, without one, of the cluster that this
// process runs in, and the function that returns its usual namespace.
func loadKubeconfig(path string) (cfg *rest.Config, namespace func() (string, error), err error) {
	if path == "" {
		if cfg, err = rest.InClusterConfig(); err != nil {
			return nil, nil, fmt.Errorf("the ServiceAccount of this Pod: %w; outside a cluster, name a file with --kubeconfig", err)
		}
		namespace = func() (string, error) {
			text, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
			if err != nil {
				return "", fmt.Errorf("namespace unknown (%w): set --namespace", err)
			}
			return strings.TrimSpace(string(text)), nil
		}
	} else {
		rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: path}
		loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil)
		if cfg, err = loader.ClientConfig(); err != nil {
			return nil, nil, fmt.Errorf("--kubeconfig %s: %w", path, err)
		}
		namespace = func() (string, error) {
			name, _, err := loader.Namespace()
			if err != nil {
				return "", fmt.Errorf("--kubeconfig %s: %w", path, err)
			}
			return name, nil
		}
	}
	cfg.UserAgent = "cascade-kube/" + cli.Version
	cfg.QPS, cfg.Burst = requestRate, requestBurst
	return cfg, namespace, nil
}

// clients are the clients of one API server.
type clients struct {
	typed   kubernetes.Interface
	dynamic dynamic.Interface
}

// newClients connects to the API server, and returns the namespace to use: the given one, or the usual one.
func newClients(kubeconfig, given string) (out clients, namespace string, err error) {
	cfg, usual, err := loadKubeconfig(kubeconfig)
	if err != nil {
		return out, "", err
	}
	if given == "" {
		if namespace, err = usual(); err != nil {
			return out, "", err
		}
	}
	if out.typed, err = kubernetes.NewForConfig(cfg); err != nil {
		return out, "", err
	}
	out.dynamic, err = dynamic.NewForConfig(cfg)
	return out, cmp.Or(given, namespace), err
}
