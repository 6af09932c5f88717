package enginesim

import (
	"net"
	"os"
	"testing"
	"time"
)

func TestIdleConn(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := idleListener{l}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	tests := []struct {
		name     string
		arrived  string
		deadline time.Duration // from now
		want     string        // "" for a timeout
	}{
		{"nothing in time", "", time.Millisecond, ""},
		{"in time", "a", time.Hour, "a"},
		{"a read that is to end at once", "", -time.Second, ""},
		{"ended at once, although something is there", "b", -time.Second, ""},
		{"what is there is read later", "", time.Hour, "b"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := client.Write([]byte(tt.arrived)); err != nil {
				t.Fatal(err)
			}
			if err := conn.SetReadDeadline(time.Now().Add(tt.deadline)); err != nil {
				t.Fatal(err)
			}
			p := make([]byte, 8)
			n, err := conn.Read(p)
			if string(p[:n]) != tt.want || (err != nil) != (tt.want == "") || err != nil && !os.IsTimeout(err) {
				t.Errorf("read %q, %v; want %q", p[:n], err, tt.want)
			}
		})
	}

	// The process stood still: the deadline has passed when the read comes, and so has the time when something came.
	if err := conn.SetReadDeadline(time.Now().Add(5 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Write([]byte("c")); err != nil {
		t.Fatal(err)
	}
	timer := time.NewTimer(20 * time.Millisecond)
	<-timer.C
	p := make([]byte, 8)
	if n, err := conn.Read(p); string(p[:n]) != "c" || err != nil {
		t.Errorf("after the deadline: read %q, %v", p[:n], err)
	}
}
