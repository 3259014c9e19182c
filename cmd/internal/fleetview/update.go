package fleetview

import (
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
)

// pollNow is the message that it is time to ask again.
type pollNow struct{}

// maxFilter bounds the filter, in bytes.
const maxFilter = 64

// Init asks for the first time.
func (m Model) Init() tea.Cmd { return m.poll }

// poll asks the control plane; Bubble Tea calls it in a goroutine of its own.
func (m Model) poll() tea.Msg { return m.cfg.Source.Poll(m.ctx) }

// pause returns how long to wait after an answer: long enough that the control plane spends no more than a
// tenth of the time on answers, however many replicas they list.
func (m Model) pause(a Answer) time.Duration { return max(m.cfg.Every, 9*a.Took) }

// Update handles one message.
func (m Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case Answer:
		return m.Receive(msg), tea.Tick(m.pause(msg), func(time.Time) tea.Msg { return pollNow{} })
	case pollNow:
		return m, m.poll
	case tea.WindowSizeMsg:
		return m.Size(msg.Width, msg.Height), nil
	case tea.KeyPressMsg:
		if m.typing {
			return m.typeFilter(msg)
		}
		return m.press(msg.String())
	}
	return m, nil
}

// press handles a key outside the filter.
func (m Model) press(key string) (tea.Model, tea.Cmd) {
	rows := m.replicaRows()
	switch key {
	case "q", "ctrl+c":
		return m, tea.Quit
	case "?", "h":
		m.help = !m.help
	case "esc":
		if m.help {
			m.help = false
			break
		}
		m.filter, m.scroll = "", 0
	case "s":
		m.order, m.scroll = (m.order+1)%orders, 0
	case "S":
		m.order, m.scroll = (m.order+orders-1)%orders, 0
	case "tab", "m", "right":
		m = m.switchModel(1)
	case "shift+tab", "M", "left":
		m = m.switchModel(-1)
	case "/":
		m.typing, m.help = true, false
	case "down", "j":
		m.scroll++
	case "up", "k":
		m.scroll--
	case "pgdown", "space", "ctrl+d":
		m.scroll += rows
	case "pgup", "ctrl+u":
		m.scroll -= rows
	case "home", "g":
		m.scroll = 0
	case "end", "G":
		m.scroll = len(m.last.Status.Models) * maxScroll
	}
	m.scroll = min(max(m.scroll, 0), m.lastScroll())
	return m, nil
}

// maxScroll is further than any list is long.
const maxScroll = 1 << 20

// typeFilter handles a key of the filter.
func (m Model) typeFilter(key tea.KeyPressMsg) (tea.Model, tea.Cmd) {
	switch key.String() {
	case "ctrl+c":
		return m, tea.Quit
	case "enter":
		m.typing = false
	case "esc":
		m.typing, m.filter = false, ""
	case "backspace":
		if _, n := utf8.DecodeLastRuneInString(m.filter); n > 0 {
			m.filter = m.filter[:len(m.filter)-n]
		}
	case "ctrl+u":
		m.filter = ""
	default:
		if text := Clean(key.Text); len(m.filter)+len(text) <= maxFilter {
			m.filter += text
		}
	}
	m.scroll = 0
	return m, nil
}

// switchModel shows the next model, or the one before.
func (m Model) switchModel(by int) Model {
	n := len(m.last.Status.Models)
	if n == 0 {
		return m
	}
	m.model, m.scroll = m.last.Status.Models[(m.modelIndex()+by+n)%n].Name, 0
	return m
}

// View draws the whole screen.
func (m Model) View() tea.View {
	v := tea.NewView(Draw(m).Styled())
	v.AltScreen = true
	v.WindowTitle = "cascade top"
	return v
}
