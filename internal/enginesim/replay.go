package enginesim

import (
	"bufio"
	"context"
	"log/slog"
	"math"
	"net"
	"sync"
)

// endOfReplay is the number in the last message of a replay.
const endOfReplay = math.MaxUint64

// maxRequestFrames bounds the frames of a request that are kept; a request has two.
const maxRequestFrames = 3

// replayer is the ROUTER socket of one rank, by which a subscriber that missed batches asks for them:
//
//	request  [""] [first number, big-endian]
//	replies  [""] [topic] [number, 8 bytes] [payload]     end  [""] [""] [ff × 8] [""]     from 0.26 on
//	         [""] [number, 8 bytes] [payload]             end  [""] [ff × 8] [""]          before
//
// A request from before the oldest batch that is kept is answered from that on. One of another number of frames is not answered.
type replayer struct {
	pub    *publisher
	topics bool // replies have the topic
	limit  int  // send limit of the socket, in messages; 0 for none
	log    *slog.Logger

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

// dropped is how many batches a replay beyond the send limit misses at most: about what is seen of vLLM, which lost 51 to 149 of 9,000.
const dropped = 64

func newReplayer(pub *publisher, f Format, limit int, log *slog.Logger) *replayer {
	return &replayer{pub: pub, topics: f == Map, limit: limit, log: log, conns: make(map[net.Conn]struct{})}
}

func (r *replayer) accept(ctx context.Context, l net.Listener) { acceptAll(ctx, l, r.log, r.serve) }

// serve answers the requests of one peer, one after the other. A peer that does not read holds up itself only.
func (r *replayer) serve(ctx context.Context, conn net.Conn) error {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	in := bufio.NewReader(conn)
	if err := routerSocket().handshake(conn, in); err != nil {
		return err
	}
	r.mu.Lock()
	r.conns[conn] = struct{}{}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.conns, conn)
		r.mu.Unlock()
	}()
	for {
		frames, err := readRequest(in, conn)
		if err != nil {
			return err
		}
		if len(frames) != 2 || len(frames[0]) != 0 {
			r.log.Warn("replay request refused", "frames", len(frames))
			continue
		}
		out := bufio.NewWriterSize(conn, 64<<10)
		r.answer(out, number(frames[1]))
		if err := out.Flush(); err != nil {
			return err
		}
	}
}

// answer writes the replies to one request; out keeps the first error.
func (r *replayer) answer(out *bufio.Writer, from uint64) {
	first, payloads := r.pub.since(from)
	var buf []byte
	for i, payload := range payloads {
		// ZMQ drops what is beyond the send limit and not taken yet, and vLLM up to 0.32 does not notice.
		if over := i - r.limit; r.limit > 0 && over >= 0 && over < dropped && i < len(payloads)-1 {
			continue
		}
		buf = r.reply(buf[:0], r.pub.topic, first+uint64(i), payload)
		_, _ = out.Write(buf)
	}
	_, _ = out.Write(r.reply(buf[:0], "", endOfReplay, nil))
}

func (r *replayer) reply(b []byte, topic string, seq uint64, payload []byte) []byte {
	b = appendFrame(b, flagMore, nil)
	if r.topics {
		b = appendFrame(b, flagMore, []byte(topic))
	}
	return appendNumbered(b, seq, payload)
}

// cut closes all connections.
func (r *replayer) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for conn := range r.conns {
		conn.Close()
	}
}

// readRequest returns the frames of the next message, of a longer one the first, and answers pings on the way.
func readRequest(in *bufio.Reader, conn net.Conn) ([][]byte, error) {
	var frames [][]byte
	for {
		flags, body, err := readFrame(in, nil)
		if err != nil {
			return nil, err
		}
		if flags&flagCommand != 0 {
			if answer, ok := pong(body); ok {
				if _, err := conn.Write(answer); err != nil {
					return nil, err
				}
			}
			continue
		}
		if len(frames) < maxRequestFrames {
			frames = append(frames, body)
		}
		if flags&flagMore == 0 {
			return frames, nil
		}
	}
}

// number reads a big-endian number of any length, as Python's int.from_bytes does; what exceeds 64 bits is beyond every batch.
func number(b []byte) uint64 {
	var n uint64
	for _, c := range b {
		if n>>56 != 0 {
			return math.MaxUint64
		}
		n = n<<8 | uint64(c)
	}
	return n
}
