"""What people look at: pictures of a result, and the page that holds them."""
