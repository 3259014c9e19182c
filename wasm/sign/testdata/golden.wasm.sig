{
  "format": "cascade-policy-signature/3",
  "statement": {
    "fleet": "default",
    "sha256": "93a44bbb96c751218e4c00d479e4c14358122a389acca16205b1e4d0dc5f9476",
    "abi": "cascade-policy/1",
    "name": "my-refiner",
    "version": "1.2.0-rc.1",
    "kinds": [
      {
        "kind": "refine",
        "fuel": 5000000,
        "micros": 20000,
        "pages": 128
      },
      {
        "kind": "guard",
        "fuel": 0,
        "micros": 0,
        "pages": 0
      }
    ],
    "not_after": 1790000000,
    "generation": 1763721600,
    "configuration": "222c92a5b82ef2963c7f19688bc5bad43bf8a53f5580a393a03b7ad6f7a7142c",
    "golden": "335e1e07be483adfdd54990f04fb9dc4da241187e0b1ea502cf774b845a828fd"
  },
  "signatures": [
    {
      "key": "34750f98bd59fcfc",
      "signature": "ZDiOsHy1XdFS/ErhiabL4bQ5GsJ15zFcKAuPUPzBG1KIuRImet7K+dxoiBXqKxumUfhYy6M6jGC5OtU+yQwsCg=="
    },
    {
      "key": "6a3803d5f059902a",
      "signature": "OrrKQKLIpCQ3t3f9282ncGE2MGQ1W6d4JmcbGxpN6rfTYXUOYeDOfL6ZWSNwF/lmpD9CkOgatDFA2Xtox9Q/Cw=="
    }
  ],
  "golden": "Ks9ILFHILFFIzCsuTy0qBgQAAP//"
}
