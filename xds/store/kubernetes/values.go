package kubernetes

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cascadeinfer/cascade/xds/internal/remotestore"
	"github.com/cascadeinfer/cascade/xds/store"
)

// hashOf returns a name of any characters as a part of the name of an object.
func hashOf(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:10])
}

// putConfigMap creates or replaces a ConfigMap.
func (c *Client) putConfigMap(ctx context.Context, timeout time.Duration, object *corev1.ConfigMap) error {
	return c.call(ctx, "write ConfigMap "+object.Name, timeout, func(ctx context.Context) error {
		err := c.core.Put().Namespace(c.namespace).Resource(configMaps).Name(object.Name).Body(object).Do(ctx).Error()
		if apierrors.IsNotFound(err) {
			err = c.core.Post().Namespace(c.namespace).Resource(configMaps).Body(object).Do(ctx).Error()
		}
		return err
	})
}

// Notes are store.Notes in Kubernetes. Notes that are not written again are removed by whoever
// reads them.
type Notes struct {
	c      *Client
	folder string

	mu   sync.Mutex
	seen map[string]seenNote // by the name of the object
}

// seenNote is when a version of a note was first read here.
type seenNote struct {
	version string
	since   time.Time
}

var _ store.Notes = (*Notes)(nil)

// Notes returns the notes in a folder, whose name is part of a label.
func (c *Client) Notes(folder string) *Notes { return &Notes{c: c, folder: folder} }

// maxNotes bounds how many notes are read; the rest is left out.
const maxNotes = 64

// Put implements store.Notes.
func (n *Notes) Put(name string, text []byte) error {
	if name == "" || len(text) > store.MaxNote {
		return fmt.Errorf("note of %.60q: %d bytes; must have a name and at most %d bytes", name, len(text), store.MaxNote)
	}
	object := &corev1.ConfigMap{
		ObjectMeta: n.c.meta(n.c.objectName(noteKind, hashOf(n.folder+"/"+name)), noteKind, n.folder),
		BinaryData: map[string][]byte{partKey: text},
	}
	var err error
	if len(text) == 0 {
		err = n.c.deleteConfigMap(context.Background(), object.Name, "")
	} else {
		err = n.c.putConfigMap(context.Background(), noteTimeout, object)
	}
	if err != nil {
		return fmt.Errorf("notes: %w", err)
	}
	return nil
}

// All implements store.Notes. A note's hour counts from when this process has first read it.
func (n *Notes) All() ([][]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), noteTimeout)
	defer cancel()
	return n.read(ctx, time.Now())
}

func (n *Notes) read(ctx context.Context, now time.Time) ([][]byte, error) {
	all, err := n.c.listConfigMaps(ctx, noteKind, n.folder)
	if err != nil {
		return nil, fmt.Errorf("notes: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	seen := make(map[string]seenNote)
	var texts [][]byte
	var errs []error
	for _, object := range all[:min(len(all), maxNotes)] {
		last := n.seen[object.Name]
		if last.version != object.ResourceVersion {
			last = seenNote{object.ResourceVersion, now}
		}
		seen[object.Name] = last
		if now.Sub(last.since) >= store.NoteLifetime {
			if err := n.c.deleteConfigMap(ctx, object.Name, object.ResourceVersion); err != nil && !apierrors.IsConflict(err) {
				errs = append(errs, err)
			}
			continue
		}
		stored, err := n.c.getConfigMap(ctx, object.Name)
		switch text := []byte(nil); {
		case errors.Is(err, errMissing):
		case err != nil:
			errs = append(errs, err)
		default:
			if text = partOf(stored); len(text) > 0 && len(text) <= store.MaxNote {
				texts = append(texts, text)
			}
		}
	}
	n.seen = seen
	if err := errors.Join(errs...); err != nil {
		return texts, fmt.Errorf("notes: %w", err)
	}
	return texts, nil
}

// Counters keep the flow counters of one control plane, compressed. They implement
// fleet.Counters, and are used by one goroutine at a time.
type Counters struct {
	c     *Client
	group string
	saved remotestore.LastSave
	parts int // that may be stored; 0: not known
}

// Counters returns the counters of a control plane.
func (c *Client) Counters(name string) *Counters { return &Counters{c: c, group: hashOf(name)} }

// maxParts bounds the parts of counters.
const maxParts = remotestore.MaxCounters/partSize + 1

func (k *Counters) partName(n int) string {
	return k.c.objectName(countersKind, k.group, strconv.Itoa(n))
}

// partsAnnotation is how many parts counters have. It is on the first part, which is written
// last.
const partsAnnotation = "cascade/parts"

// Save implements fleet.Counters. Counters that were saved so recently that they would fill the
// history of etcd are skipped: a crash loses what was counted since the last write, up to 8 s for
// each 128 KiB of compressed counters, which is 512 s at remotestore.MaxCounters.
func (k *Counters) Save(data []byte) error {
	if k.saved.IsRecent() {
		return nil
	}
	return k.SaveLast(data)
}

// SaveLast implements fleet.Counters. It writes at once: a restart in order loses nothing. If a
// save of several parts is interrupted, Load fails.
func (k *Counters) SaveLast(data []byte) error {
	stored, err := remotestore.CompressCounters("kubernetes", data)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), blobTimeout)
	defer cancel()
	parts := remotestore.Split(stored, partSize)
	if k.parts > 0 { // also if this save is interrupted
		k.parts = max(k.parts, len(parts))
	}
	for n := len(parts) - 1; n >= 0; n-- {
		object := &corev1.ConfigMap{ObjectMeta: k.c.meta(k.partName(n), countersKind, k.group), BinaryData: map[string][]byte{partKey: parts[n]}}
		if n == 0 {
			object.Annotations = map[string]string{partsAnnotation: strconv.Itoa(len(parts))}
		}
		if err := k.c.putConfigMap(ctx, writeTimeout, object); err != nil {
			return fmt.Errorf("counters: %w", err)
		}
	}
	if k.parts == 0 { // those of a former process
		all, err := k.c.listConfigMaps(ctx, countersKind, k.group)
		if err != nil {
			return fmt.Errorf("counters: %w", err)
		}
		k.parts = len(parts)
		for _, object := range all { // an interrupted save may have left the last parts only
			if n, err := strconv.Atoi(strings.TrimPrefix(object.Name, k.c.objectName(countersKind, k.group)+"-")); err == nil && n < maxParts {
				k.parts = max(k.parts, n+1)
			}
		}
	}
	for ; k.parts > len(parts); k.parts-- {
		if err := k.c.deleteConfigMap(ctx, k.partName(k.parts-1), ""); err != nil {
			return fmt.Errorf("counters: %w", err)
		}
	}
	k.saved, k.parts = remotestore.LastSave{At: time.Now(), Size: len(stored)}, len(parts)
	return nil
}

// Load implements fleet.Counters.
func (k *Counters) Load() ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), blobTimeout)
	defer cancel()
	var all bytes.Buffer
	for n, parts := 0, 1; n < parts; n++ {
		object, err := k.c.getConfigMap(ctx, k.partName(n))
		if n == 0 && errors.Is(err, errMissing) {
			return nil, nil
		}
		if err == nil && n == 0 {
			if parts, err = strconv.Atoi(object.Annotations[partsAnnotation]); err == nil && (parts < 1 || parts > maxParts) {
				err = fmt.Errorf("annotation %s: %d parts", partsAnnotation, parts)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("counters: %w", err)
		}
		all.Write(partOf(object))
	}
	return remotestore.ExpandCounters("kubernetes", &all)
}

// maxSecret is the size of a secret in bytes.
const maxSecret = 1024

// CreateOnce returns the secret of a name. The first caller stores what it passes; all others
// get that.
func (c *Client) CreateOnce(ctx context.Context, name string, secret []byte) (stored []byte, err error) {
	if len(secret) == 0 || len(secret) > maxSecret {
		return nil, fmt.Errorf("secret %s: %d bytes: must have 1 to %d", name, len(secret), maxSecret)
	}
	object := &corev1.Secret{ObjectMeta: c.meta(c.objectName(name), secretKind, ""), Immutable: new(true), Data: map[string][]byte{partKey: secret}}
	err = c.call(ctx, "create Secret "+object.Name, writeTimeout, func(ctx context.Context) error {
		err := c.core.Post().Namespace(c.namespace).Resource(secrets).Body(object).Do(ctx).Error()
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		present := &corev1.Secret{}
		if err := c.core.Get().Namespace(c.namespace).Resource(secrets).Name(object.Name).Do(ctx).Into(present); err != nil {
			return err
		}
		secret = present.Data[partKey]
		return nil
	})
	if err == nil && (len(secret) == 0 || len(secret) > maxSecret) {
		err = fmt.Errorf("kubernetes Secret %s/%s: %d bytes under %s, want 1 to %d", c.namespace, object.Name, len(secret), partKey, maxSecret)
	}
	if err != nil {
		return nil, err
	}
	return secret, nil
}
