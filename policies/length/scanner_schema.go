package length

// role is the meaning of a value for the count. The role of a container determines the
// roles of its elements and members (element, member).
type role byte

const (
	body      role = iota // the whole body
	ignored               // checked for syntax only
	modelName             // model
	limit                 // max_tokens, max_completion_tokens
	prompt                // prompt, messages, input: a text, or a list of items
	item                  // of a prompt: a text, an id, a list of ids, a message
	id                    // a token id in a list of lists
	content               // a message's: a text, or a list of parts
	part                  // of a content: a text, or an object with one
	text                  // a part's text
	raw                   // counted as compact JSON: tools, tool calls
	ranked                // documents to rank, or the query: a text, or a list of entries
	entry                 // of such a list: a text, or an object
)

// levels bounds how deep a value that counts may be: body, messages, message,
// content, part.
const levels = 6

// register identifies a sum. A repeated key replaces the sum of its earlier value; the
// sums of messages and parts are added to the value that contains them.
type register byte

const (
	promptText register = iota
	messages
	input // the last one that makes a body countable
	system
	instructions
	tools
	functions
	messageContent
	messageCalls
	messageCall
	partText
	query // from here on queries, then documents, which are no prompt
	queries
	firstText
	documents
	secondText
	registers
)

// size is a sum in one register.
type size struct {
	text   int64
	tokens int64
	media  int
	found  bool
	// Of a list of prompts or documents: their number, and the sums over all of them.
	prompts int
	allText int64
	allIDs  int64
}

// add adds a part of a message, which has no token ids.
func (z *size) add(o size) {
	z.text += o.text
	z.media += o.media
}

// element returns the role of an element of the array that is open.
func (s *Scanner) element() (role, register) {
	if s.depth >= levels {
		return ignored, 0
	}
	home := s.registersAt[s.depth]
	switch s.roles[s.depth] {
	case prompt:
		return item, home
	case item:
		return id, home
	case content:
		return part, home
	case ranked:
		return entry, home
	}
	return ignored, 0
}

// member returns the role of the key just read in the object that is open,
// and forgets what an earlier value of the same key counted.
func (s *Scanner) member() (role, register) {
	if s.depth >= levels || s.keyLen > len(s.key) {
		return ignored, 0
	}
	key := string(s.key[:s.keyLen]) // does not escape, so does not allocate
	for i := range members {
		m := &members[i]
		if m.of != s.roles[s.depth] || m.key != key {
			continue
		}
		switch m.role {
		case modelName:
			s.modelLen = 0
		case limit:
			s.limits[m.register] = 0
		case text:
			s.hasText = true
			fallthrough
		default:
			s.sizes[m.register] = size{}
		}
		return m.role, m.register
	}
	return ignored, 0
}

// members are the keys that count, by the role of their object.
var members = [...]struct {
	of       role
	key      string
	role     role
	register register
}{
	{body, "model", modelName, 0},
	{body, "max_tokens", limit, 0},
	{body, "max_completion_tokens", limit, 1},
	{body, "prompt", prompt, promptText},
	{body, "messages", prompt, messages},
	{body, "input", prompt, input},
	{body, "system", content, system},
	{body, "instructions", content, instructions},
	{body, "query", ranked, query},
	{body, "queries", ranked, queries},
	{body, "text_1", ranked, firstText},
	{body, "documents", ranked, documents},
	{body, "text_2", ranked, secondText},
	{body, "tools", raw, tools},
	{body, "functions", raw, functions},
	{item, "content", content, messageContent},
	{item, "tool_calls", raw, messageCalls},
	{item, "function_call", raw, messageCall},
	{part, "text", text, partText},
}

// enter begins a container that counts.
func (s *Scanner) enter(c byte, at int64) {
	switch {
	case s.role == prompt && c == '[':
		s.sizes[s.register].found = true
	case s.role == item && c == '[':
		s.row = 0
	case s.role == part && c == '{':
		s.hasText = false
	case s.role == raw:
		s.mark = at - s.whitespace
	case s.role == entry:
		s.sizes[s.register].prompts++
	}
}

// leave adds a container's sums at its closing byte.
func (s *Scanner) leave(at int64) {
	home := &s.sizes[s.registersAt[s.depth]]
	switch object := s.inObject(); s.roles[s.depth] {
	case item:
		if !object {
			home.tokens = max(home.tokens, s.row)
			home.allIDs += s.row
			home.prompts++
			return
		}
		for r := messageContent; r <= messageCall; r++ {
			home.add(s.sizes[r])
			s.sizes[r] = size{}
		}
	case part:
		if !object {
			return
		}
		home.add(s.sizes[partText])
		s.sizes[partText] = size{}
		if !s.hasText {
			home.media++
		}
	case raw:
		home.text += at + 1 - s.whitespace - s.mark
	}
}

// stringValue counts a string that is a value.
func (s *Scanner) stringValue() {
	home := &s.sizes[s.register]
	switch s.role {
	case prompt:
		home.text, home.found = s.length, true
	case item:
		home.text = max(home.text, s.length)
		home.allText += s.length
		home.prompts++
	case entry:
		home.prompts++
		home.text += s.length
	case content, part, text, ranked:
		home.text += s.length
	}
}

// numberValue counts a number.
func (s *Scanner) numberValue() {
	switch s.role {
	case limit:
		if !s.fraction {
			s.limits[s.register] = s.number
		}
	case item:
		s.sizes[s.register].tokens++
	case id:
		s.row++
	}
}

// idBytes is a fast path for lists of token ids: it counts plain integers as long as a
// comma follows each, and returns how many bytes it read. The states handle the rest.
func (s *Scanner) idBytes(p []byte) int {
	if s.state != atValue && s.state != atFirstValue {
		return 0
	}
	n, count := 0, int64(0)
	for {
		end := n
		for end < len(p) && '0' <= p[end] && p[end] <= '9' {
			end++
		}
		if end == n || end == len(p) || p[end] != ',' || p[n] == '0' && end > n+1 {
			break
		}
		count++
		for n = end + 1; n < len(p) && p[n] == ' '; n++ {
			s.whitespace++
		}
	}
	if count == 0 {
		return 0
	}
	s.state = atValue
	if s.role == id {
		s.row += count
	} else {
		s.sizes[s.register].tokens += count
	}
	return n
}
