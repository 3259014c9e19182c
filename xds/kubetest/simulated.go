package kubetest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Simulated is a part of the Kubernetes API, in memory: ConfigMaps and Leases of all
// namespaces, with resourceVersions, label selectors, pages, merge patches and
// watches of one object, as the API server has them. It checks no types and no permissions.
// Suites of stores run on it and on a real API server.
type Simulated struct {
	URL string

	server *httptest.Server

	mu       sync.Mutex
	version  int
	objects  map[string]object // by path
	watches  map[chan event]string
	before   func(*http.Request) int
	lose     func(*http.Request) bool
	requests []string
}

// object is an object of the API as JSON.
type object = map[string]any

// event is an event of a watch.
type event struct {
	Type   string `json:"type"`
	Object object `json:"object"`
}

// Sizes that the API server allows, in bytes.
const (
	maxData        = 1 << 20
	maxAnnotations = 256 << 10
)

// Simulate starts an empty API that ends with the test.
func Simulate(t testing.TB) *Simulated {
	t.Helper()
	s := &Simulated{objects: make(map[string]object), watches: make(map[chan event]string)}
	s.server = httptest.NewServer(s)
	s.URL = s.server.URL
	t.Cleanup(func() {
		s.EndWatches()
		s.server.Close()
	})
	return s
}

// Before sets what is called before each request: a status other than 0 is the answer, and
// nothing else happens. It may be nil.
func (s *Simulated) Before(f func(*http.Request) int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = f
}

// LoseAnswers sets which requests have no answer, although they are executed. It may be nil.
func (s *Simulated) LoseAnswers(f func(*http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lose = f
}

// Requests returns the requests that were executed, as VERB PATH, with the verbs of RBAC. The path
// of a watch is that of the watched object.
func (s *Simulated) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Paths returns the paths of all objects that contain a text.
func (s *Simulated) Paths(text string) (paths []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, path := range slices.Sorted(maps.Keys(s.objects)) {
		if strings.Contains(path, text) {
			paths = append(paths, path)
		}
	}
	return paths
}

// Edit changes an object as another client would; nil removes it.
func (s *Simulated) Edit(path string, edit func(map[string]any) map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := edit(clone(s.objects[path]))
	if next == nil {
		s.remove(path)
		return
	}
	s.store(path, next)
}

// EndWatches ends all watches, as the API server does when it restarts.
func (s *Simulated) EndWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		close(w)
		delete(s.watches, w)
	}
}

// ExpireWatches sends 410 Gone to all watches, as the API server does when the history that they
// need was compacted.
func (s *Simulated) ExpireWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		select {
		case w <- event{"ERROR", status(http.StatusGone, "Expired", "too old resource version")}:
		default: // a client that is too slow sees that its watch ends
		}
		close(w)
		delete(s.watches, w)
	}
}

// Watches returns how many watches there are.
func (s *Simulated) Watches() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.watches)
}

// ServeHTTP implements http.Handler.
func (s *Simulated) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 4<<20))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	before, lose := s.before, s.lose
	s.mu.Unlock()
	if before != nil {
		if code := before(r); code != 0 {
			write(w, code, status(code, http.StatusText(code), "simulated"))
			return
		}
	}
	if r.URL.Query().Get("watch") != "" {
		s.serveWatch(w, r)
		return
	}
	code, answer := s.execute(r, body)
	if lose != nil && lose(r) {
		panic(http.ErrAbortHandler)
	}
	write(w, code, answer)
}

func write(w http.ResponseWriter, code int, answer object) {
	w.Header().Set("content-type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer)
}

func status(code int, reason, message string) object {
	return object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message}
}

// execute executes a request other than a watch.
func (s *Simulated) execute(r *http.Request, body []byte) (code int, answer object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := r.URL.Path
	s.requests = append(s.requests, verb(r)+" "+path)
	stored, exists := s.objects[path]
	if !exists && r.Method != http.MethodPost && !(r.Method == http.MethodGet && isCollection(path)) {
		return http.StatusNotFound, status(http.StatusNotFound, "NotFound", path+" not found")
	}
	var given object
	if len(body) > 0 {
		if err := json.Unmarshal(body, &given); err != nil {
			return http.StatusBadRequest, status(http.StatusBadRequest, "BadRequest", err.Error())
		}
	}
	conflict := status(http.StatusConflict, "Conflict", "the object has been modified")
	switch r.Method {
	case http.MethodGet:
		if isCollection(path) {
			return s.list(r)
		}
		return http.StatusOK, stored
	case http.MethodPost:
		path += "/" + text(given, "metadata", "name")
		if _, exists := s.objects[path]; exists {
			return http.StatusConflict, status(http.StatusConflict, "AlreadyExists", path+" already exists")
		}
	case http.MethodPut:
		if isOutdated(given, stored) {
			return http.StatusConflict, conflict
		}
		if stored["immutable"] == true && !sameData(stored, given) {
			return http.StatusUnprocessableEntity, status(http.StatusUnprocessableEntity, "Invalid", "field is immutable when `immutable` is set")
		}
	case http.MethodPatch:
		if isOutdated(given, stored) {
			return http.StatusConflict, conflict
		}
		patched := clone(stored)
		merge(patched, given)
		given = patched
	case http.MethodDelete:
		s.remove(path)
		return http.StatusOK, object{"kind": "Status", "apiVersion": "v1", "status": "Success"}
	}
	if why := tooLarge(given); why != "" {
		return http.StatusUnprocessableEntity, status(http.StatusUnprocessableEntity, "Invalid", why)
	}
	return http.StatusOK, s.store(path, given)
}

// isOutdated reports whether a request names another resourceVersion than the stored one.
func isOutdated(given, stored object) bool {
	v := text(given, "metadata", "resourceVersion")
	return v != "" && v != text(stored, "metadata", "resourceVersion")
}

// verb returns the verb of RBAC of a request other than a watch.
func verb(r *http.Request) string {
	if r.Method == http.MethodGet && isCollection(r.URL.Path) {
		return "list"
	}
	return map[string]string{
		http.MethodGet: "get", http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete",
	}[r.Method]
}

// isCollection reports whether a path is that of a list: its last part is a resource.
func isCollection(path string) bool {
	return strings.HasSuffix(path, "/configmaps") || strings.HasSuffix(path, "/leases")
}

// store stores an object under a new resourceVersion. The caller holds mu.
func (s *Simulated) store(path string, o object) object {
	s.version++
	o = clone(o)
	meta, _ := o["metadata"].(object)
	meta["resourceVersion"] = strconv.Itoa(s.version)
	kind := "MODIFIED"
	if _, exists := s.objects[path]; !exists {
		kind = "ADDED"
	}
	s.objects[path] = o
	s.send(path, event{kind, o})
	return o
}

func (s *Simulated) remove(path string) {
	s.version++
	o := s.objects[path]
	delete(s.objects, path)
	s.send(path, event{"DELETED", o})
}

func (s *Simulated) send(path string, e event) {
	for w, watched := range s.watches {
		if watched == path {
			select {
			case w <- e:
			default: // as a client that is too slow
				close(w)
				delete(s.watches, w)
			}
		}
	}
}

// list answers a list. The caller holds mu.
func (s *Simulated) list(r *http.Request) (int, object) {
	query := r.URL.Query()
	limit, _ := strconv.Atoi(query.Get("limit"))
	items, next := []any{}, ""
	for _, path := range slices.Sorted(maps.Keys(s.objects)) {
		o := s.objects[path]
		if !strings.HasPrefix(path, r.URL.Path+"/") || path <= query.Get("continue") || !selects(query.Get("labelSelector"), o) {
			continue
		}
		if limit > 0 && len(items) == limit {
			next = r.URL.Path + "/" + text(items[len(items)-1].(object), "metadata", "name")
			break
		}
		if strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList") {
			o = object{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": o["metadata"]}
		}
		items = append(items, o)
	}
	return http.StatusOK, object{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "items": items, "metadata": object{"continue": next}}
}

// selects reports whether an object has all labels of a selector of the form a=b,c=d.
func selects(selector string, o object) bool {
	for term := range strings.SplitSeq(selector, ",") {
		key, value, ok := strings.Cut(term, "=")
		if ok && text(o, "metadata", "labels", key) != value {
			return false
		}
	}
	return true
}

// serveWatch serves a watch of the object that the field selector names, from the present.
func (s *Simulated) serveWatch(w http.ResponseWriter, r *http.Request) {
	name, ok := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	if !ok {
		write(w, http.StatusBadRequest, status(http.StatusBadRequest, "BadRequest", "watch one object"))
		return
	}
	path, events := r.URL.Path+"/"+name, make(chan event, 100)
	s.mu.Lock()
	s.requests = append(s.requests, "watch "+path)
	s.watches[events] = path
	if o, exists := s.objects[path]; exists {
		events <- event{"ADDED", o}
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watches, events)
	}()
	w.Header().Set("content-type", "application/json")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w)
	for {
		_ = flush.Flush()
		select {
		case e, ok := <-events:
			if !ok || json.NewEncoder(w).Encode(e) != nil {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}

// text returns a string field of an object; "" where there is none.
func text(o object, keys ...string) string {
	for _, key := range keys[:len(keys)-1] {
		o, _ = o[key].(object)
	}
	value, _ := o[keys[len(keys)-1]].(string)
	return value
}

// clone returns a deep copy.
func clone(o object) object {
	body, err := json.Marshal(o)
	if err != nil {
		panic("internal error: encode an object: " + err.Error())
	}
	var out object
	if err := json.Unmarshal(body, &out); err != nil {
		panic("internal error: decode an object: " + err.Error())
	}
	return out
}

// merge applies a merge patch.
func merge(o, patch object) {
	for key, value := range patch {
		if inner, ok := value.(object); ok {
			if _, ok := o[key].(object); !ok {
				o[key] = object{}
			}
			merge(o[key].(object), inner)
		} else if value == nil {
			delete(o, key)
		} else {
			o[key] = value
		}
	}
}

func sameData(a, b object) bool {
	return fmt.Sprint(a["data"], a["binaryData"]) == fmt.Sprint(b["data"], b["binaryData"])
}

// tooLarge returns why the API server would refuse the size of an object, or "".
func tooLarge(o object) string {
	size := 0
	for _, field := range []string{"data", "binaryData"} {
		values, _ := o[field].(object)
		for _, value := range values {
			text, _ := value.(string)
			if field == "binaryData" {
				size += base64.StdEncoding.DecodedLen(len(text))
			} else {
				size += len(text)
			}
		}
	}
	if size > maxData {
		return fmt.Sprintf("data: Too long: may not be more than %d bytes", maxData)
	}
	size = 0
	meta, _ := o["metadata"].(object)
	annotations, _ := meta["annotations"].(object)
	for key := range annotations {
		size += len(key) + len(text(annotations, key))
	}
	if size > maxAnnotations {
		return fmt.Sprintf("metadata.annotations: Too long: may not be more than %d bytes", maxAnnotations)
	}
	return ""
}
