// Read what Python and Node programs have cached, and count: go run . SOCKET
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"

	"github.com/redis/go-redis/v9"
)

type basket struct {
	For   string   `json:"for"`
	Items []string `json:"items"`
}

func main() {
	ctx := context.Background()
	cache := redis.NewClient(&redis.Options{Network: "unix", Addr: os.Args[1]})
	defer cache.Close()

	stored, err := cache.Get(ctx, "basket:1").Bytes()
	if err != nil {
		log.Fatal(err)
	}
	var found basket
	if err := json.Unmarshal(stored, &found); err != nil {
		log.Fatal(err)
	}
	visits, err := cache.IncrBy(ctx, "visits", 1).Result()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("go: %d items for %s, visit %d\n", len(found.Items), found.For, visits)
}
