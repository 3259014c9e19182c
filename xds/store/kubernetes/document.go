package kubernetes

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascadeinfer/cascade/xds/internal/remotestore"
	"github.com/cascadeinfer/cascade/xds/store"
)

const (
	// maxInline is the largest document in an annotation. Kubernetes allows 256 KiB for all
	// annotations of an object.
	maxInline = 128 << 10
	// partSize is the size of the ConfigMaps of larger documents, modules and counters.
	// Kubernetes allows 1 MiB.
	partSize = 768 << 10
	// Keys of the data of a ConfigMap: of a document in one part, which is text, and of a
	// part of anything else.
	textKey = "document.json"
	partKey = "part"
)

// pointer says where the parts of a document are.
type pointer struct {
	ID     string `json:"id"` // hexadecimal digits that no other document has
	SHA256 string `json:"sha256"`
	Size   int    `json:"size"`  // of the document, in bytes
	Parts  int    `json:"parts"` // numbered from 0
}

// reference is the form of a pointer in an annotation.
type reference struct {
	Stored *pointer `json:"stored"`
}

func (p pointer) annotation() string {
	text, err := json.Marshal(reference{&p})
	if err != nil {
		panic("internal error: encode a pointer: " + err.Error())
	}
	return string(text)
}

// parsePointer returns the pointer of an annotation; nil for a document that is in it.
func parsePointer(text string) (*pointer, error) {
	var r reference
	if len(text) > 1024 || json.Unmarshal([]byte(text), &r) != nil || r.Stored == nil {
		return nil, nil // decoding says what is wrong with it
	}
	p := r.Stored
	if id, err := hex.DecodeString(p.ID); err != nil || len(id) != idSize {
		return nil, errors.New("stored: id is not an id")
	}
	if sum, err := hex.DecodeString(p.SHA256); err != nil || len(sum) != sha256.Size {
		return nil, errors.New("stored: sha256 is not a hash")
	}
	if p.Size < 1 || p.Size > store.MaxSize || p.Parts < 1 || p.Parts > store.MaxSize/1024 {
		return nil, fmt.Errorf("stored: %d bytes in %d parts: at most %d bytes are allowed", p.Size, p.Parts, store.MaxSize)
	}
	return p, nil
}

// idSize is the size of a pointer's ID in bytes.
const idSize = 8

// partNames returns the names of the ConfigMaps of a document.
func (c *Client) partNames(kind string, p pointer) []string {
	names := make([]string, p.Parts)
	for n := range names {
		names[n] = c.objectName(kind, p.ID, strconv.Itoa(n))
	}
	return names
}

// putDocument stores a document under a new ID. Until the root names it, it may be collected
// only after the root was changed; see collector.
func (c *Client) putDocument(ctx context.Context, kind string, body []byte) (pointer, error) {
	var id [idSize]byte
	rand.Read(id[:])
	sum, parts := sha256.Sum256(body), remotestore.Split(body, partSize)
	p := pointer{ID: hex.EncodeToString(id[:]), SHA256: hex.EncodeToString(sum[:]), Size: len(body), Parts: len(parts)}
	for n, name := range c.partNames(kind, p) {
		object := &corev1.ConfigMap{ObjectMeta: c.meta(name, kind, ""), Immutable: new(true)}
		if len(parts) == 1 {
			object.Data = map[string]string{textKey: string(parts[n])}
		} else {
			object.BinaryData = map[string][]byte{partKey: parts[n]}
		}
		if err := c.createConfigMap(ctx, object); err != nil && !apierrors.IsAlreadyExists(err) { // by an attempt whose answer was lost
			return pointer{}, err
		}
	}
	return p, nil
}

func (c *Client) createConfigMap(ctx context.Context, object *corev1.ConfigMap) error {
	return c.call(ctx, "create ConfigMap "+object.Name, writeTimeout, func(ctx context.Context) error {
		return c.core.Post().Namespace(c.namespace).Resource(configMaps).Body(object).Do(ctx).Error()
	})
}

// Resources of the API.
const (
	configMaps = "configmaps"
	secrets    = "secrets"
	leases     = "leases"
)

// errMissing says that a ConfigMap that the root names does not exist.
var errMissing = errors.New("the ConfigMap is missing")

// getDocument returns a document.
func (c *Client) getDocument(ctx context.Context, kind string, p pointer) ([]byte, error) {
	var body bytes.Buffer
	for _, name := range c.partNames(kind, p) {
		object, err := c.getConfigMap(ctx, name)
		if err != nil {
			return nil, err
		}
		part := partOf(object)
		if body.Len()+len(part) > p.Size {
			return nil, fmt.Errorf("kubernetes ConfigMap %s/%s: its document has more than %d bytes", c.namespace, name, p.Size)
		}
		body.Write(part)
	}
	if sum := sha256.Sum256(body.Bytes()); hex.EncodeToString(sum[:]) != p.SHA256 {
		return nil, fmt.Errorf("kubernetes ConfigMap %s/%s: its document has another hash", c.namespace, c.partNames(kind, p)[0])
	}
	return body.Bytes(), nil
}

// getConfigMap returns a ConfigMap; its error is errMissing (wrapped) where there is none.
func (c *Client) getConfigMap(ctx context.Context, name string) (*corev1.ConfigMap, error) {
	object := &corev1.ConfigMap{}
	err := c.call(ctx, "read ConfigMap "+name, readTimeout, func(ctx context.Context) error {
		return c.core.Get().Namespace(c.namespace).Resource(configMaps).Name(name).Do(ctx).Into(object)
	})
	if apierrors.IsNotFound(err) {
		err = fmt.Errorf("kubernetes ConfigMap %s/%s: %w", c.namespace, name, errMissing)
	}
	if err != nil {
		return nil, err
	}
	return object, nil
}

func partOf(object *corev1.ConfigMap) []byte {
	if part, ok := object.BinaryData[partKey]; ok {
		return part
	}
	return []byte(object.Data[textKey])
}

// maxListed bounds a listing.
const maxListed = 10_000

// listConfigMaps returns the metadata of the ConfigMaps of a kind, and of a group if it is not
// "".
func (c *Client) listConfigMaps(ctx context.Context, kind, group string) ([]metav1.ObjectMeta, error) {
	selector := managedByLabel + "=" + managedBy + "," + instanceLabel + "=" + c.name + "," + kindLabel + "=" + kind
	if group != "" {
		selector += "," + groupLabel + "=" + group
	}
	var all []metav1.ObjectMeta
	options := metav1.ListOptions{LabelSelector: selector, Limit: 500}
	for {
		var page metav1.PartialObjectMetadataList
		err := c.call(ctx, "list ConfigMaps of "+kind, readTimeout, func(ctx context.Context) error {
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
			all = append(all, object.ObjectMeta)
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return all, nil
		}
		if len(all) > maxListed {
			return nil, fmt.Errorf("kubernetes namespace %s: more than %d ConfigMaps of %s: only the control planes of one fleet may use this name", c.namespace, maxListed, kind)
		}
	}
}

// deleteConfigMap removes a ConfigMap if it has a resourceVersion, or any if that is "". Its
// error is nil where there is none.
func (c *Client) deleteConfigMap(ctx context.Context, name, version string) error {
	options := &metav1.DeleteOptions{}
	if version != "" {
		options.Preconditions = &metav1.Preconditions{ResourceVersion: &version}
	}
	err := c.call(ctx, "delete ConfigMap "+name, writeTimeout, func(ctx context.Context) error {
		return c.core.Delete().Namespace(c.namespace).Resource(configMaps).Name(name).Body(options).Do(ctx).Error()
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
