package kvconnector

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// The protocol: the client sends messages, each a length of four bytes and a JSON object; the server
// answers each with a status byte, a length of four bytes, and a body.
const (
	maxMessage = 64 << 10
	// maxRead bounds the blocks of one message.
	maxRead = 256
	// maxBody bounds an answer of several blocks, and maxText one of text.
	maxBody, maxText = 4 << 20, 1 << 10
)

// maxBlocksPerMessage returns how many blocks one message may ask for.
func maxBlocksPerMessage(blockBytes int) int { return min(maxRead, max(1, maxBody/blockBytes)) }

// message is what a client asks. One field is set.
type message struct {
	Hello string `json:"hello,omitempty"` // expected engine id; the answer identifies the process
	Read  []int  `json:"read,omitempty"`  // the answer is their bytes
	Done  string `json:"done,omitempty"`  // a request id: its blocks are no longer needed
}

// Statuses of an answer.
const (
	statusOK     = 0
	statusFailed = 1 // the body is the reason
)

func writeMessage(w io.Writer, m message) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

func readMessage(r io.Reader) (m message, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return m, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxMessage {
		return m, fmt.Errorf("a message of %d bytes, more than %d", n, maxMessage)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return m, err
	}
	err = json.Unmarshal(body, &m)
	return m, err
}

func writeAnswer(w io.Writer, body []byte, failed error) error {
	status := byte(statusOK)
	if failed != nil {
		status, body = statusFailed, []byte(failed.Error())
		body = body[:min(len(body), maxText)]
	}
	_, err := w.Write(append(binary.BigEndian.AppendUint32([]byte{status}, uint32(len(body))), body...))
	return err
}

// errRefused is an answer with a reason.
var errRefused = errors.New("refused")

// readAnswer reads an answer of at most so many bytes, or of maxText if that is more.
func readAnswer(r io.Reader, most int) ([]byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if most = max(most, maxText); n > uint32(most) {
		return nil, fmt.Errorf("an answer of %d bytes, more than %d", n, most)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, err
	}
	if head[0] != statusOK {
		return nil, fmt.Errorf("%w: %.200s", errRefused, body)
	}
	return body, nil
}
