package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/cascadeinfer/cascade/internal/wakeup"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Sizes, in bytes. Kubernetes allows 256 KiB for all annotations of an object and 1 MiB for the data
// of a ConfigMap. The plan is not in the root, which is written every second: it would fill the
// history of the cluster's etcd.
const (
	maxState = 128 << 10
	maxBlob  = 768 << 10
	// maxListed bounds a listing.
	maxListed = 10_000
	// watchTime is how long one watch of the API lasts, in seconds.
	watchTime = 300
)

// rootAnnotation is the annotation of the Lease that is the root.
const rootAnnotation = "cascade/root"

// Keys of the data of a ConfigMap: of text, which people read, and of anything else.
const (
	textKey = "text"
	blobKey = "blob"
)

// Resources of the API.
const (
	configMaps = "configmaps"
	leases     = "leases"
)

var _ store.Backend = (*Client)(nil)

// String implements store.Backend.
func (c *Client) String() string { return "kubernetes Lease " + c.namespace + "/" + c.name }

// Limits implements store.Backend.
func (c *Client) Limits() store.Limits { return store.Limits{Plan: 0, State: maxState, Blob: maxBlob} }

// ReadRoot implements store.Backend.
func (c *Client) ReadRoot(ctx context.Context) (store.Root, error) {
	lease, err := c.getLease(ctx)
	if err != nil || lease == nil || lease.Annotations[rootAnnotation] == "" {
		return store.Root{}, err
	}
	data := []byte(lease.Annotations[rootAnnotation])
	return store.Root{Data: data, Version: store.Version(lease.ResourceVersion)}, nil
}

// getLease returns the Lease; nil if there is none.
func (c *Client) getLease(ctx context.Context) (*coordinationv1.Lease, error) {
	lease := &coordinationv1.Lease{}
	err := c.call(ctx, "read the plan: Lease "+c.name, func(ctx context.Context) error {
		return c.coordination.Get().Namespace(c.namespace).Resource(leases).Name(c.name).Do(ctx).Into(lease)
	})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return lease, err
}

// SwapRoot implements store.Backend. The patch names the resourceVersion that it starts from, and
// leaves what others have added to the metadata.
func (c *Client) SwapRoot(ctx context.Context, old store.Version, root []byte) (store.Version, error) {
	n, err := strconv.ParseUint(string(old), 10, 64)
	if old != "" && (err != nil || strconv.FormatUint(n, 10) != string(old)) {
		return "", c.conflict()
	}
	next := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.namespace, Name: c.name, ResourceVersion: string(old),
			Labels: c.labels(rootKind), Annotations: map[string]string{rootAnnotation: string(root)},
		},
		Spec: specOf(root, time.Now()),
	}
	if old == "" {
		switch lease, err := c.getLease(ctx); {
		case err != nil:
			return "", err
		case lease == nil:
			return c.writeLease(ctx, func() *rest.Request { return c.coordination.Post().Body(next) })
		case lease.Annotations[rootAnnotation] != "":
			return "", c.conflict()
		default: // a Lease without a plan
			next.ResourceVersion = lease.ResourceVersion
		}
	}
	patch, err := json.Marshal(next)
	if err != nil {
		return "", err
	}
	return c.writeLease(ctx, func() *rest.Request {
		return c.coordination.Patch(types.MergePatchType).Name(c.name).Body(patch)
	})
}

// writeLease makes a request that writes the Lease, and returns its version.
func (c *Client) writeLease(ctx context.Context, request func() *rest.Request) (store.Version, error) {
	stored := &coordinationv1.Lease{}
	err := c.call(ctx, "store the plan: Lease "+c.name, func(ctx context.Context) error {
		return request().Namespace(c.namespace).Resource(leases).Do(ctx).Into(stored)
	})
	switch {
	case err == nil:
		return store.Version(stored.ResourceVersion), nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
		// Where the namespace is missing, a read finds no Lease, either.
		return "", fmt.Errorf("%w: %w (is there a namespace %s?)", c.conflict(), err, c.namespace)
	}
	return "", err
}

func (c *Client) conflict() error { return fmt.Errorf("%s: %w", c, store.ErrConflict) }

// specOf returns the spec of the Lease, which is for people and tools: the lease that counts is in
// the root. A field that is nil stays as it is in a patch, so a lease that was released has no holder.
func specOf(root []byte, now time.Time) coordinationv1.LeaseSpec {
	var d struct{ Lease store.Lease }
	_ = json.Unmarshal(root, &d)
	seconds := int32(min(3600, max(1, d.Lease.Expires.Sub(now).Round(time.Second)/time.Second)))
	return coordinationv1.LeaseSpec{
		HolderIdentity: &d.Lease.Holder, LeaseDurationSeconds: &seconds, RenewTime: &metav1.MicroTime{Time: now},
	}
}

// WatchRoot implements store.Backend. When a watch is cut, or its resourceVersion has expired
// (410 Gone), the next one begins with the present: its first event has the Lease as it is.
func (c *Client) WatchRoot(ctx context.Context, changed chan<- struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	options := metav1.ListOptions{
		Watch: true, FieldSelector: "metadata.name=" + c.name, TimeoutSeconds: new(int64(watchTime)),
	}
	w, err := c.coordination.Get().Namespace(c.namespace).Resource(leases).
		VersionedParams(&options, c.params).Watch(ctx)
	if err != nil {
		return
	}
	defer w.Stop()
	for {
		select {
		case e, ok := <-w.ResultChan():
			if !ok || e.Type == watch.Error {
				return
			}
			wakeup.Send(changed)
		case <-ctx.Done():
			return
		}
	}
}

// object returns the name of the ConfigMap of a blob.
func (c *Client) object(folder, name string) string { return c.name + "-" + folder + "-" + name }

// body returns the ConfigMap of a blob.
func (c *Client) body(folder, object string, data []byte, immutable bool) *corev1.ConfigMap {
	meta := metav1.ObjectMeta{Namespace: c.namespace, Name: object, Labels: c.labels(folder)}
	if utf8.Valid(data) {
		return &corev1.ConfigMap{ObjectMeta: meta, Immutable: &immutable, Data: map[string]string{textKey: string(data)}}
	}
	return &corev1.ConfigMap{ObjectMeta: meta, Immutable: &immutable, BinaryData: map[string][]byte{blobKey: data}}
}

// callBlob makes a request about the ConfigMap of a blob.
func (c *Client) callBlob(ctx context.Context, verb, folder, name string, do func(ctx context.Context, object string) error) error {
	object := c.object(folder, name)
	err := c.call(ctx, verb+" configmap "+object, func(ctx context.Context) error { return do(ctx, object) })
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%w: %w", store.ErrNoBlob, err)
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("%w: %w", store.ErrExists, err)
	}
	return err
}

// create creates a ConfigMap.
func (c *Client) create(ctx context.Context, body *corev1.ConfigMap) error {
	return c.core.Post().Namespace(c.namespace).Resource(configMaps).Body(body).Do(ctx).Error()
}

// CreateBlob implements store.Backend.
func (c *Client) CreateBlob(ctx context.Context, folder, name string, data []byte) error {
	return c.callBlob(ctx, "create", folder, name, func(ctx context.Context, object string) error {
		return c.create(ctx, c.body(folder, object, data, true))
	})
}

// ReplaceBlob implements store.Backend.
func (c *Client) ReplaceBlob(ctx context.Context, folder, name string, data []byte) error {
	return c.callBlob(ctx, "write", folder, name, func(ctx context.Context, object string) error {
		body := c.body(folder, object, data, false)
		err := c.core.Put().Namespace(c.namespace).Resource(configMaps).Name(object).Body(body).Do(ctx).Error()
		if apierrors.IsNotFound(err) {
			err = c.create(ctx, body)
		}
		return err
	})
}

// ReadBlob implements store.Backend.
func (c *Client) ReadBlob(ctx context.Context, folder, name string) (data []byte, err error) {
	err = c.callBlob(ctx, "read", folder, name, func(ctx context.Context, object string) error {
		r := c.core.Get().Namespace(c.namespace).Resource(configMaps).Name(object).Do(ctx)
		var stored corev1.ConfigMap
		err := r.Into(&stored)
		data = stored.BinaryData[blobKey]
		if text, ok := stored.Data[textKey]; ok {
			data = []byte(text)
		}
		return err
	})
	return data, err
}

// ListBlobs implements store.Backend.
func (c *Client) ListBlobs(ctx context.Context, folder string) (names []string, err error) {
	prefix := c.object(folder, "")
	var selector []string
	for label, value := range c.labels(folder) {
		selector = append(selector, label+"="+value)
	}
	options := metav1.ListOptions{LabelSelector: strings.Join(selector, ","), Limit: 500}
	for {
		var page metav1.PartialObjectMetadataList
		err := c.call(ctx, "list ConfigMaps of "+folder, func(ctx context.Context) error {
			text, err := c.core.Get().Namespace(c.namespace).Resource(configMaps).VersionedParams(&options, c.params).
				SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").Do(ctx).Raw()
			if err == nil {
				page = metav1.PartialObjectMetadataList{}
				err = json.Unmarshal(text, &page)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, object := range page.Items {
			names = append(names, strings.TrimPrefix(object.Name, prefix))
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return names, nil
		}
		if len(names) > maxListed {
			return nil, fmt.Errorf("kubernetes namespace %s: more than %d ConfigMaps of %s: "+
				"only the control planes of one fleet may use this name", c.namespace, maxListed, folder)
		}
	}
}

// RemoveBlob implements store.Backend.
func (c *Client) RemoveBlob(ctx context.Context, folder, name string) error {
	err := c.callBlob(ctx, "delete", folder, name, func(ctx context.Context, object string) error {
		return c.core.Delete().Namespace(c.namespace).Resource(configMaps).Name(object).Do(ctx).Error()
	})
	if errors.Is(err, store.ErrNoBlob) {
		return nil
	}
	return err
}
